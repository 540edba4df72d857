#!/bin/sh
# Checks this project on a real card (or on the virtual GPU) in under 8 minutes, the build included.
#
# usage: run.sh [--device cuda|sim|vulkan] [--out DIR] [--minutes 8] [--quick] [--no-group-limits]
#
# Works in the unpacked kit and in a checkout. Needs Python >= 3.10 without packages, cmake, make or ninja, g++, and
# for cuda nvcc and a driver. No network. Writes DIR/xlm-gpu-check.json and DIR/xlm-gpu-check.md.
# Exit status: 0 nothing failed, 1 something failed (see the summary), 2 it could not start.
here=$(cd "$(dirname "$0")" && pwd) || exit 2
command -v python3 >/dev/null || { echo "run.sh: python3 (3.10 or newer) is needed" >&2; exit 2; }
exec python3 "$here/kit/driver.py" "$@"
