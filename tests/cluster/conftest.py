from tests.hosts import mended, two_hosts

__all__ = ["mended", "two_hosts"]
