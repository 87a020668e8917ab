import os
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
# The models are small: threads would wait for one another most of the time.
os.environ.setdefault("OMP_NUM_THREADS", "1")
