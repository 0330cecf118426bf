"""The reference pages of docs/, made from the code that they describe."""
