//! What `doctor --report` leaves out.

#[test]
fn a_report_for_an_issue_names_no_people_machines_or_places() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("ada lovelace");
    // Outside of the home folder.
    let disk = folder.path().join("emmy noether");
    let libraries = [home.join("cuda"), disk.join("cuda libraries")];
    let wheels = disk.join("venv/lib/python3.12/site-packages/nvidia/cu13/lib");
    for folder in libraries.iter().chain([&wheels]) {
        std::fs::create_dir_all(folder).unwrap();
    }
    let mut command = crate::program();
    command
        .args(["doctor", "--report", "--python"])
        .arg(disk.join("old venv/python"));
    command.current_dir(&home).env("HOME", &home).env("USER", "ada");
    command
        .env("LD_LIBRARY_PATH", std::env::join_paths(libraries).unwrap())
        .env("VIRTUAL_ENV", disk.join("venv"));
    command
        .env("PEFT_TUNE_DB", home.join("a.db"))
        .env("PEFT_TUNE_CACHE", home.join("cache"));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report = String::from_utf8(output.stdout).unwrap();
    assert!(
        report.starts_with("```text\npeft-tune ") && report.ends_with("\n```\n"),
        "{report}"
    );
    for part in ["processor", "memory", "measured ceilings", "trl (PyTorch)"] {
        assert!(report.contains(part), "{part}: {report}");
    }
    assert!(!report.contains(&folder.path().display().to_string()), "{report}");
    assert!(
        report.split_whitespace().all(|word| !word.starts_with(['/', '~'])),
        "{report}"
    );
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let names = ["ada", "lovelace", "emmy", "noether", host.trim()];
    let mut words = report.split(|letter: char| !(letter.is_alphanumeric() || "-._".contains(letter)));
    assert!(!words.any(|word| word.len() > 1 && names.contains(&word)), "{report}");
}
