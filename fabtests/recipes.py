# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Renders the recipe for conda on each platform, with all conditions and variables.

recipes.py RECIPE VERSION

A rendered recipe must have the version, a licence, sources, tests and a build script. Ends with
"N passed, N failed".
"""

import sys
from pathlib import Path

import rattler_build

PLATFORMS = ("linux-64", "linux-aarch64")
# Compilers that a feedstock pins.
VARIANTS = 'c_compiler: ["gcc"]\nc_stdlib: ["sysroot"]\nrust_compiler: ["rust"]\n'


def defects(recipe, version):
    """Returns the parts of a rendered recipe that are missing or wrong."""
    tree = recipe.to_dict()
    parts = {
        "package": tree["package"] == {"name": "scif-fi", "version": version},
        "licence": bool(tree["about"].get("license")),
        "source": version in str(tree["source"]),
        "build script": bool(tree["build"].get("script")),
        "tests": bool(tree.get("tests")),
    }
    return [part for part, good in parts.items() if not good]


def main():
    recipe = rattler_build.Stage0Recipe.from_yaml(Path(sys.argv[1]).read_text())
    passed = failed = 0
    for name in PLATFORMS:
        platform = rattler_build.PlatformConfig(target_platform=name)
        rendered = recipe.render(
            rattler_build.VariantConfig.from_yaml(VARIANTS),
            rattler_build.RenderConfig(platform=platform),
        )
        wrong = [part for variant in rendered for part in defects(variant.recipe, sys.argv[2])]
        if len(rendered) == 1 and not wrong:
            passed += 1
        else:
            failed += 1
            print(f"FAIL {name}: {len(rendered)} variants; wrong or missing: {wrong}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


sys.exit(main())
