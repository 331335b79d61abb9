//! Numbers of a GPU that trials tell, as people see them: `show`, the report, and the table that report and dashboard
//! share.

use std::path::Path;
use std::process::Command;

use peft_tune::store::Store;
use peft_tune_core::study::{Metrics, Params, TrialNumber, TrialState};

use crate::store::{recipe, study_record};

/// The numbers of one trial, and how they are shown.
const NUMBERS: [(&str, f64, &str); 6] = [
    ("mfu", 0.4561, "45.6%"),
    ("gpu_utilisation", 0.98, "98.0%"),
    ("gpu_power_w", 651.4, "651 W"),
    ("gpu_temperature_c", 71.0, "71 °C"),
    ("gpu_clock_mhz", 1755.2, "1755 MHz"),
    ("joules_per_token", 0.0512, "0.0512 J"),
];

/// Elements that hold what is put into them, and the text of a page's table.
const BROWSER: &str = r#"
class Element {
  constructor() { this.children = []; this.classList = { toggle() {} }; this.scrollLeft = 0; }
  querySelectorAll() { return []; }
  setAttribute() {}
  addEventListener() {}
  append(...children) { this.children.push(...children); }
  replaceChildren(...children) { this.children = children; }
  get text() { return this.children.map((child) => child instanceof Element ? child.text + (child.cell ? "|" : "") : child).join(""); }
}
globalThis.document = {
  createElement(tag) { const element = new Element(); element.cell = tag === "th" || tag === "td"; return element; },
};
"#;

async fn stored(path: &Path) {
    let store = Store::open(path).await.unwrap();
    let study = store.studies().begin(&study_record("numbers")).await.unwrap();
    for number in [0, 1].map(TrialNumber) {
        let params = Params::from([("rank".to_owned(), 8.into())]);
        store
            .trials()
            .start(study.id, number, &params, Some(&recipe()))
            .await
            .unwrap();
        let mut metrics: Metrics = [("throughput", 1000.0), ("peak_memory", 5e8), ("loss", 2.5)].into();
        // The second trial ran where nothing tells.
        if number.0 == 0 {
            for (name, value, _) in NUMBERS {
                metrics.insert(name, value);
            }
        }
        let state = TrialState::Complete { metrics };
        store.trials().finish(study.id, number, &state, 1.0).await.unwrap();
    }
    store.close().await.unwrap();
}

fn run(database: &Path, arguments: &[&str]) -> String {
    let mut command = crate::program();
    let output = command.args(arguments).arg("--db").arg(database).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trial_shows_what_the_gpu_did_with_its_units() {
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("a.db");
    stored(&database).await;
    let text = run(&database, &["show", "numbers", "0"]);
    for (name, _, shown) in NUMBERS {
        let has = |line: &str| line.split_whitespace().next() == Some(name) && line.ends_with(shown);
        assert!(text.lines().any(has), "{name}: {text}");
    }
    assert!(!run(&database, &["show", "numbers", "1"]).contains("gpu_"));
    let page = folder.path().join("page.html");
    run(&database, &["report", "numbers", "--output", page.to_str().unwrap()]);
    let page = std::fs::read_to_string(page).unwrap();
    let (_, view) = page
        .split_once("<script type=\"application/json\" id=\"view\">")
        .unwrap();
    let view = view.split_once("</script>").unwrap().0;
    let Some(table) = table_of(view) else { return };
    let expected = "MFU|GPU busy|power|temperature|clock|J/token|";
    assert!(table.contains(expected), "{table}");
    assert!(table.contains("45.6%|98%|651 W|71 °C|1755 MHz|0.0512|"), "{table}");
    assert!(table.contains("–|–|–|–|–|–|"), "{table}");
}

/// The text of the page's table of trials, by its own scripts; `None` without Node.
fn table_of(view: &str) -> Option<String> {
    let scripts = [
        BROWSER,
        include_str!("../../src/report/html/assets/base.js"),
        include_str!("../../src/report/html/assets/table.js"),
    ];
    let drawn = "PT.view = JSON.parse(process.argv[1]); const host = new Element(), shown = new Element();
        PT.table(host, { value: \"\", addEventListener() {} }, shown).draw(); console.log(host.text);";
    let script = format!("{}\n{drawn}", scripts.join("\n"));
    let output = Command::new("node")
        .args(["--eval", &script, "--", view])
        .output()
        .ok()?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap())
}
