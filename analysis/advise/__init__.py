"""Which batch to use, from as few samples as settle it: evidence -> posterior -> decision -> what to run next."""
