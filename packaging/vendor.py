#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Copies the packages of others into a directory, for builds without network.

vendor.py DIRECTORY    CARGO is the command of cargo

Prints the configuration of cargo for it. Of packages that only other systems than Linux need, a
manifest and an empty library remain. Cargo asks for the manifests; the rest is most of the bytes.
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGETS = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"]
CARGO = os.environ.get("CARGO", "cargo").split()
# Suffixes of files without a source in the package: reports and libraries of other systems. No
# build on Linux reads them, and Debian's tools refuse them.
SOURCELESS = (".dll", ".html")
CONFIGURATION = """\
[source.crates-io]
replace-with = "vendored-sources"

[source.vendored-sources]
directory = "vendor"
"""


def needed():
    """Names and versions of the packages that a build on Linux compiles, also for loom."""
    found = set()
    for target in TARGETS:
        for flags in ("", "--cfg loom"):
            done = subprocess.run(
                [*CARGO, "metadata", "--format-version", "1", "--locked", "--filter-platform",
                 target], cwd=ROOT, check=True, stdout=subprocess.PIPE,
                env={**os.environ, "RUSTFLAGS": flags})
            data = json.loads(done.stdout)
            used = {node["id"] for node in data["resolve"]["nodes"]}
            found |= {(p["name"], p["version"]) for p in data["packages"] if p["id"] in used}
    return found


def identity(package):
    """Name and version in the manifest of a package."""
    section, fields = "", {}
    for line in (package / "Cargo.toml").read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            section = line
        elif section == "[package]" and " = " in line:
            key, value = line.split(" = ", 1)
            fields[key] = value.strip().strip('"')
    return fields["name"], fields["version"]


def empty(package):
    """Leaves the manifest of a package and an empty library."""
    sums = json.loads((package / ".cargo-checksum.json").read_text(encoding="utf-8"))
    manifest = (package / "Cargo.toml").read_bytes()
    shutil.rmtree(package)
    (package / "src").mkdir(parents=True)
    (package / "src" / "lib.rs").touch()
    (package / "Cargo.toml").write_bytes(manifest)
    sums["files"] = {}
    (package / ".cargo-checksum.json").write_text(json.dumps(sums) + "\n", encoding="utf-8")


def without_sourceless(package):
    """Removes files without a source, also from the sums that cargo verifies."""
    path = package / ".cargo-checksum.json"
    sums = json.loads(path.read_text(encoding="utf-8"))
    for name in [name for name in sums["files"] if name.endswith(SOURCELESS)]:
        (package / name).unlink()
        del sums["files"][name]
    path.write_text(json.dumps(sums) + "\n", encoding="utf-8")


def main():
    place = pathlib.Path(sys.argv[1])
    keep = needed()
    subprocess.run([*CARGO, "vendor", "--locked", "--versioned-dirs", place], cwd=ROOT, check=True,
                   stdout=subprocess.DEVNULL)
    emptied = [package for package in sorted(place.iterdir()) if identity(package) not in keep]
    for package in place.iterdir():
        if package in emptied:
            empty(package)
        else:
            without_sourceless(package)
    kept = len(list(place.iterdir())) - len(emptied)
    if kept < 2:
        sys.exit("vendor.py: cargo vendor copied no package that is needed")
    print(f"{kept} packages, {len(emptied)} without their sources", file=sys.stderr)
    print(CONFIGURATION, end="")


if __name__ == "__main__":
    main()
