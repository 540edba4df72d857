"""The surroundings of every test, set before anything is imported."""

import atexit
import os
import shutil
import tempfile

from hypothesis import HealthCheck, settings

from xlm._threads import share_cores

# Spinning at barriers costs a shared machine a factor of ten (docs/decisions/0006-openmp-threads-wait-briefly.md).
share_cores()

# Keys of a broker that was once started with --curve must not turn encryption on in here.
_CONFIG = tempfile.mkdtemp(prefix="xlm-config-")
atexit.register(shutil.rmtree, _CONFIG, ignore_errors=True)
os.environ["XDG_CONFIG_HOME"] = _CONFIG

# Property tests: no example has to be ready in time, and every run tries the same ones, so that a failure is one of the
# change at hand. To look for new ones: pytest --hypothesis-profile=random
settings.register_profile("steady", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.register_profile("random", settings.get_profile("steady"), derandomize=False)
settings.load_profile("steady")
