"""Object storage: its URLs, and one client for S3, Google Cloud Storage, Azure, folders and memory."""
