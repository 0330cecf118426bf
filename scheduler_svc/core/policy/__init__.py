"""Orders in which jobs are offered GPUs; one policy a file behind `policy.base.Policy`."""
