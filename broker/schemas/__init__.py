"""Message structs, one file a sender. Import the file you need; nothing is re-exported."""
