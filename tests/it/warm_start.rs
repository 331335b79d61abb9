//! Searches of a program that start from earlier studies in the same database.

use crate::calls::run;
use crate::mocked::errors_of;

const PROGRAM: &str = r#"
read -r line
value() { printf '%s' "$line" | sed "s/.*\"$1\":\([0-9.]*\).*/\1/"; }
x=$(value x); y=$(value y)
awk "BEGIN { printf \"{\\\"metrics\\\": {\\\"a\\\": %.6f, \\\"b\\\": %.6f}}\\n\", 1 + ($x - 3)^2 + $y, 1 + ($x - 7)^2 + $y }"
"#;

fn space(study: &str, rest: &str) -> String {
    format!(
        "study: {study}\nbackend: {{command: [sh, trial.sh]}}\n\
         objectives: [{{metric: a, reference: 60}}, {{metric: b, reference: 60}}]\n\
         space: {{x: {{low: 0, high: 9}}, y: {{low: 0, high: 9}}}}\n{rest}"
    )
}

#[test]
fn a_search_knows_the_trials_of_earlier_studies_and_keeps_which() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("trial.sh", PROGRAM);
    write("first.yaml", &space("first", "budget: {trials: 10}\n"));
    write(
        "second.yaml",
        &space("second", "budget: {trials: 4}\nwarm_start: true\n"),
    );
    assert!(run(folder.path(), &["search", "first.yaml"]).status.success());

    let begun = run(folder.path(), &["search", "second.yaml"]);
    assert!(begun.status.success(), "{}", errors_of(&begun));
    assert!(
        errors_of(&begun).contains("starts from 10 trials of study `first`"),
        "{}",
        errors_of(&begun)
    );
    let recorded = run(
        folder.path(),
        &["query", "select source, trials from warm_start", "--format", "csv"],
    );
    assert_eq!(
        String::from_utf8_lossy(&recorded.stdout).trim(),
        "source,trials\nfirst,10"
    );

    // The first setting is one of the earlier front: no initial design.
    let both = "select max(n) as n from (select count(*) as n from trial_param as a
                join trial_param as b on a.name = b.name and a.value = b.value
                where a.study = 'first' and b.study = 'second' and b.trial = 0 group by a.trial)";
    let shared = run(folder.path(), &["query", both, "--format", "csv"]);
    assert_eq!(String::from_utf8_lossy(&shared.stdout).trim(), "n\n2");

    // What the earlier study has learned since does not change a search that continues.
    assert!(
        run(folder.path(), &["search", "first.yaml", "--trials", "12"])
            .status
            .success()
    );
    let resumed = run(folder.path(), &["search", "second.yaml", "--trials", "5"]);
    assert!(
        errors_of(&resumed).contains("starts from 10 trials"),
        "{}",
        errors_of(&resumed)
    );
}

#[test]
fn an_unknown_study_is_a_mistake_in_the_file() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("trial.sh"), PROGRAM).unwrap();
    std::fs::write(folder.path().join("space.yaml"), space("own", "warm_start: [gone]\n")).unwrap();
    let refused = run(folder.path(), &["search", "space.yaml"]);
    assert_eq!(refused.status.code(), Some(2));
    let errors = errors_of(&refused);
    assert!(errors.contains("warm_start") && errors.contains("gone"), "{errors}");
}
