#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Licence texts of the packages of others that are compiled into what is installed.

notices.py [FILE]    writes them to FILE, or to the standard output; CARGO is the command of cargo

Licences such as MIT require their text beside each binary. Equal texts are printed once, below
the names of their packages. A package without a licence file ends the script with an error.
"""
import pathlib
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "fabtests"))
import sbom  # noqa: E402

# Beginnings of the names of licence files, in capitals.
NAMES = ("LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "UNLICENSE", "NOTICE")


def texts(package):
    """Texts of the licence files beside the manifest of a package."""
    home = pathlib.Path(package["manifest_path"]).parent
    files = sorted(f for f in home.iterdir() if f.is_file() and f.name.upper().startswith(NAMES))
    if not files:
        sys.exit(f"notices.py: {package['name']} {package['version']} has no licence file")
    return [f.read_text(encoding="utf-8").strip() for f in files]


def notices():
    packages = sbom.foreign_packages()
    owners = {}
    for package in packages:
        for text in texts(package):
            owners.setdefault(text, []).append(f"{package['name']} {package['version']}")
    lines = ["Packages of others that are compiled into the libraries and programs of scif:", ""]
    lines += [f"  {p['name']} {p['version']}: {p['license']}" for p in packages]
    for text, names in owners.items():
        lines += ["", "-" * 72, "  " + "\n  ".join(names), "-" * 72, "", text]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        pathlib.Path(sys.argv[1]).write_text(notices(), encoding="utf-8")
    else:
        print(notices(), end="")
