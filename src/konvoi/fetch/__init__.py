"""From addresses to verified files: which sets there are, how they are downloaded and unpacked."""
