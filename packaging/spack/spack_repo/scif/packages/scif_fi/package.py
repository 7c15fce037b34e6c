# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only

import os

from spack_repo.builtin.build_systems.autotools import AutotoolsPackage

from spack.package import *


class ScifFi(AutotoolsPackage):
    """Libfabric provider for processes on one host and across hosts, over SCIF, the Symmetric
    Communication Interface, with the libraries libscif, libsisci and libkofi."""

    # `make dist` writes the archive. Spack finds it in a mirror or in the current directory.
    manual_download = True
    url = f"file://{os.getcwd()}/scif-fi-0.2.0.tar.xz"

    license("BSD-2-Clause OR GPL-2.0-only")

    version("0.2.0")

    variant("provider", default=True, description="Build the libfabric provider and libkofi")

    depends_on("c", type="build")
    depends_on("gmake", type="build")
    depends_on("rust@1.85:", type="build")

    with when("+provider"):
        depends_on("pkgconfig", type="build")
        # bindgen reads the headers of libfabric by libclang.
        depends_on("llvm+clang", type="build")
        depends_on("libfabric@1.17:", type=("build", "link", "run"))

    requires("platform=linux", msg="scif uses memfd, pidfd and process_vm of Linux")

    def setup_build_environment(self, env: EnvironmentModifications) -> None:
        if self.spec.satisfies("+provider"):
            env.set("LIBCLANG_PATH", self.spec["llvm"].prefix.lib)

    def setup_run_environment(self, env: EnvironmentModifications) -> None:
        if self.spec.satisfies("+provider"):
            env.prepend_path("FI_PROVIDER_PATH", self.prefix.lib.libfabric)

    def configure_args(self):
        return [
            f"--libdir={self.prefix.lib}",
            "--without-linkdir",
            *self.enable_or_disable("provider"),
        ]
