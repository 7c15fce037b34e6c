// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Tests of `turns.awk`: medians, ratios in time also for rates, placements apart, few samples.
#![expect(clippy::unwrap_used, reason = "a test says what it expects by unwrapping it")]

use std::process::Command;

/// Returns the tables and the file of medians for samples `test,unit,size,subject,placement,value`.
fn report(name: &str, samples: &[&str]) -> (String, String) {
    let dir = std::env::temp_dir().join(format!("turns-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let mut text = String::from("test,unit,size,subject,placement,before_ns,after_ns,value\n");
    for sample in samples {
        let (head, value) = sample.rsplit_once(',').unwrap();
        text.push_str(&format!("{head},100,100,{value}\n"));
    }
    std::fs::write(dir.join("samples.csv"), text).unwrap();
    let output = Command::new("awk")
        .args(["-v", "subjects=scif shm", "-v", "samples=2", "-v"])
        .arg(format!("csv={}", dir.join("medians.csv").display()))
        .args(["-f", concat!(env!("CARGO_MANIFEST_DIR"), "/turns.awk")])
        .arg(dir.join("samples.csv"))
        .output()
        .unwrap();
    let medians = std::fs::read_to_string(dir.join("medians.csv")).unwrap();
    std::fs::remove_dir_all(dir).unwrap();
    (String::from_utf8(output.stdout).unwrap(), medians)
}

#[test]
fn ratios_are_of_medians_in_time() {
    let (_, medians) = report(
        "time",
        &[
            "pingpong,us,8,scif,mid,3",
            "pingpong,us,8,scif,mid,1",
            "pingpong,us,8,scif,mid,2",
            "pingpong,us,8,shm,mid,4",
            "bw,MB/s,8,scif,mid,300",
            "bw,MB/s,8,shm,mid,100",
        ],
    );
    assert!(medians.contains("pingpong,us,mid,8,scif,3,2,1,3,\n"), "{medians}");
    assert!(medians.contains("pingpong,us,mid,8,shm,1,4,4,4,0.50\n"), "{medians}");
    // A third of the time for three times the rate.
    assert!(medians.contains("bw,MB/s,mid,8,shm,1,100,100,100,0.33\n"), "{medians}");
}

#[test]
fn placements_are_apart_and_few_samples_are_marked() {
    let samples = ["scif,mid,1", "scif,mid,3", "shm,mid,4", "shm,mid,4", "scif,far,9"];
    let samples = samples.map(|sample| format!("pingpong,us,4096,{sample}"));
    let (tables, _) = report("places", &samples.each_ref().map(String::as_str));
    let rows: Vec<Vec<&str>> = tables
        .lines()
        .map(|line| line.split_whitespace().collect())
        .filter(|row: &Vec<&str>| row.first() == Some(&"4K"))
        .collect();
    assert_eq!(rows, [vec!["4K", "2", "4", "0.50", "2"], vec!["4K", "9", "-", "-", "1", "few"]]);
}
