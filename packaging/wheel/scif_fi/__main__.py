# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""The command `python -m scif_fi`, which is scif-fi-run."""
from scif_fi.run import main

main()
