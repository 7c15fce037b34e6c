# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Places of scif's files in this installation."""
import pathlib

HOME = pathlib.Path(__file__).resolve().parent
# Directory for FI_PROVIDER_PATH, with libscif-fi.so alone.
PROVIDER_DIRECTORY = HOME / "provider"
# Directory of libkofi's libfabric.so.1, for programs on systems without libfabric.
LIBFABRIC_DIRECTORY = HOME / "lib" / "kofi"
SCIFCTL = HOME / "bin" / "scifctl"
