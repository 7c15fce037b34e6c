# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Tag of the wheel: any Python 3, one kind of machine."""
from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel


class Binary(Distribution):
    def has_ext_modules(self):
        return True


class OneMachine(bdist_wheel):
    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


setup(distclass=Binary, cmdclass={"bdist_wheel": OneMachine})
