import os
import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
# The models are small: threads would wait for one another most of the time.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture
def refused():
    """Checks that a call raises an error of one line, in which the expression `why` is found."""

    def check(why, call, *args, error=ValueError, **given):
        with pytest.raises(error, match=why) as found:
            call(*args, **given)
        assert "\n" not in str(found.value)

    return check
