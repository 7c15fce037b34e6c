// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Place of this process in its job, and whether the job spans hosts, as launchers of MPI tell by
//! variables of the environment.
//!
//! Not about their source: the caller passes the variables.

/// Place of this process in its job.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Launcher {
    /// Launcher or interface; empty if no launcher is known.
    pub name: &'static str,
    /// Rank of this process.
    pub rank: Option<u64>,
    /// Number of ranks.
    pub size: Option<u64>,
    /// Identifier of the job, as its launcher names it.
    pub job: String,
}

/// Variables of launchers: name to show, rank, number of ranks, job. The first row with a rank
/// applies.
const LAUNCHERS: [(&str, &str, &str, &str); 6] = [
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMIX_NAMESPACE"),
    ("PMIx", "PMIX_RANK", "PMIX_SIZE", "PMIX_NAMESPACE"),
    ("PMI", "PMI_RANK", "PMI_SIZE", "PMI_JOBID"),
    ("MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "SLURM_JOB_ID"),
    ("Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_JOB_ID"),
    ("Flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_JOB_ID"),
];

/// Variables of launchers: number of ranks of the job, and of those on this host. The first row
/// with both applies.
const RANKS: [(&str, &str); 3] = [
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE"),
    // Hydra, of MPICH and Intel MPI.
    ("PMI_SIZE", "MPI_LOCALNRANKS"),
];

/// Variables of launchers: number of hosts of the job. They apply if no row of [`RANKS`] does.
const HOSTS: [&str; 2] = ["SLURM_STEP_NUM_NODES", "FLUX_JOB_NNODES"];

/// Returns the place of this process in its job.
#[must_use]
pub fn place(variable: impl Fn(&str) -> Option<String>) -> Launcher {
    let number = |name: &str| variable(name)?.trim().parse().ok();
    let row = LAUNCHERS.iter().find(|(_, rank, _, _)| number(rank).is_some());
    row.map_or_else(Launcher::default, |(name, rank, size, job)| Launcher {
        name,
        rank: number(rank),
        size: number(size),
        job: variable(job).unwrap_or_default(),
    })
}

/// Whether the launcher has started ranks on other hosts too. False without a known launcher.
#[must_use]
pub fn spans_hosts(variable: impl Fn(&str) -> Option<String>) -> bool {
    let number = |name: &str| variable(name)?.trim().parse::<u64>().ok();
    let ranks = RANKS.iter().find_map(|(all, here)| Some(number(all)? > number(here)?));
    ranks.unwrap_or_else(|| HOSTS.iter().find_map(|hosts| number(hosts)).is_some_and(|n| n > 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn among<'a>(set: &'a [(&str, &str)]) -> impl Fn(&str) -> Option<String> + 'a {
        |name| set.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    }

    #[test]
    fn the_rank_comes_from_the_launcher() {
        let set = [("PMI_RANK", "3"), ("PMI_SIZE", "x"), ("SLURM_PROCID", "7"), ("PMIX_RANK", "")];
        let found = place(among(&set));
        assert_eq!((found.name, found.rank, found.size), ("PMI", Some(3), None));
        assert_eq!(place(|_| None), Launcher::default());
    }

    #[test]
    fn a_job_spans_hosts_if_its_launcher_has_ranks_elsewhere() {
        let cases: [(&[(&str, &str)], bool); 10] = [
            (&[], false),
            (&[("PMI_SIZE", "4"), ("MPI_LOCALNRANKS", "4")], false),
            (&[("PMI_SIZE", "4"), ("MPI_LOCALNRANKS", "2")], true),
            (&[("PMI_SIZE", "4")], false),
            (&[("PMI_SIZE", "4"), ("MPI_LOCALNRANKS", "?")], false),
            (&[("OMPI_COMM_WORLD_SIZE", "2"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "2")], false),
            (&[("OMPI_COMM_WORLD_SIZE", "3"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "2")], true),
            (&[("SLURM_STEP_NUM_NODES", "1")], false),
            (&[("SLURM_STEP_NUM_NODES", "2")], true),
            // A launcher of MPI within one host of an allocation.
            (&[("PMI_SIZE", "2"), ("MPI_LOCALNRANKS", "2"), ("SLURM_STEP_NUM_NODES", "8")], false),
        ];
        for (set, spans) in cases {
            assert_eq!(spans_hosts(among(set)), spans, "{set:?}");
        }
    }
}
