"""What the tests of this folder share."""

from tests.support.once import repository_is_read_once  # noqa: F401
