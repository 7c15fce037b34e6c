#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Bill of materials of the libraries and programs that are installed, in CycloneDX JSON.

sbom.py [FILE]    writes it to FILE, or to the standard output; CARGO is the command of cargo

It lists the Rust packages that are compiled into them, by `cargo metadata` and Cargo.lock.
Packages for tests and for build scripts are left out; macros, which generate code, are in. Equal
sources give equal bytes.
"""
import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Packages whose products `make install` installs.
INSTALLED = ["scif-fi", "libkofi", "libscif", "libsisci", "scifdev", "scifctl"]
TARGET = "x86_64-unknown-linux-gnu"


def metadata():
    cargo = os.environ.get("CARGO", "cargo").split()
    command = [*cargo, "metadata", "--format-version", "1", "--locked",
               "--filter-platform", TARGET]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)


def checksums():
    """Checksums of Cargo.lock by name and version."""
    entries = (ROOT / "Cargo.lock").read_text(encoding="utf-8").split("[[package]]")[1:]
    fields = [dict(re.findall(r'^(\w+) = "(.*)"$', entry, re.M)) for entry in entries]
    return {(f["name"], f["version"]): f["checksum"] for f in fields if "checksum" in f}


def linked(graph, first):
    """Packages that are compiled into those of `first`, with their own such packages."""
    found, rest = {}, list(first)
    while rest:
        package = rest.pop()
        if package not in found:
            found[package] = sorted(
                dep["pkg"] for dep in graph[package]["deps"]
                if any(kind["kind"] is None for kind in dep["dep_kinds"]))
            rest += found[package]
    return found


def reference(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


def component(package, sums):
    entry = {
        "type": "library",
        "bom-ref": reference(package),
        "name": package["name"],
        "version": package["version"],
        "purl": reference(package),
        "licenses": [{"expression": re.sub(r" ?/ ?", " OR ", package["license"])}],
    }
    checksum = sums.get((package["name"], package["version"]))
    if checksum:
        entry["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    return entry


def compiled_in():
    """Packages by identifier, those of this tree by name, and what is compiled into INSTALLED."""
    data = metadata()
    packages = {package["id"]: package for package in data["packages"]}
    graph = {node["id"]: node for node in data["resolve"]["nodes"]}
    ours = {packages[at]["name"]: at for at in data["workspace_members"]}
    return packages, ours, linked(graph, [ours[name] for name in INSTALLED])


def foreign_packages():
    """Packages of others that are compiled into INSTALLED, in the order of the bill."""
    packages, _, found = compiled_in()
    return [packages[at] for at in sorted(found, key=lambda at: reference(packages[at]))
            if packages[at]["source"]]


def bill():
    packages, ours, found = compiled_in()
    sums = checksums()
    order = sorted(found, key=lambda at: reference(packages[at]))
    foreign = [at for at in order if packages[at]["source"]]
    if not foreign:
        sys.exit("sbom.py: cargo metadata lists no package of others")
    without = [reference(packages[at]) for at in foreign
               if (packages[at]["name"], packages[at]["version"]) not in sums]
    if without:
        sys.exit(f"sbom.py: Cargo.lock has no checksum of {', '.join(without)}")
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": "scif",
                "name": "scif",
                "version": packages[ours["scif-fi"]]["version"],
                "licenses": [{"expression": packages[ours["scif-fi"]]["license"]}],
            },
        },
        "components": [component(packages[at], sums) for at in order],
        "dependencies": [
            {"ref": "scif", "dependsOn": [reference(packages[ours[n]]) for n in INSTALLED]},
        ] + [
            {"ref": reference(packages[at]),
             "dependsOn": [reference(packages[to]) for to in found[at]]} for at in order
        ],
    }


if __name__ == "__main__":
    text = json.dumps(bill(), indent=2) + "\n"
    if len(sys.argv) > 1:
        pathlib.Path(sys.argv[1]).write_text(text, encoding="utf-8")
    else:
        print(text, end="")
