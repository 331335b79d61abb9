//! The tutorial and the how-tos are run: every block of shell in them, in a folder of its own, as a reader would.
//!
//! What cannot run here (a GPU, a cluster, another tool, a download) stands below `<!-- not run: the reason -->`.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Settings of the tutorial's study, and what it has here so that a processor that does other work besides is done in a
/// minute.
const SMALLER: [(&str, &str); 6] = [
    ("training_tokens: 60k", "training_tokens: 1k"),
    ("{epochs: 3}", "{steps: 3}"),
    ("rows: 128", "rows: 4"),
    ("micro_batch: [1, 2, 4, 8, 16]", "micro_batch: [4, 8]"),
    ("profile_steps: 5", "profile_steps: 1\n  profile_warmup: 1"),
    ("sampler: auto", "sampler: auto\nconfirm: none"),
];

/// Words of the blocks, and what is run in their place.
const COMMANDS: [(&str, &str); 1] = [("--trials 24", "--trials 2")];

/// Says that the next block is not run, and why.
const NOT_RUN: &str = "<!-- not run: ";

/// A block of shell with the line that it begins at.
#[derive(Debug)]
struct Block {
    line: usize,
    script: String,
    /// Why it is not run.
    reason: Option<String>,
}

/// The blocks of a page that are marked as shell.
fn blocks(text: &str) -> Vec<Block> {
    let (mut blocks, mut reason, mut open) = (Vec::new(), None::<String>, None::<Block>);
    for (number, line) in text.lines().enumerate() {
        if let Some(block) = &mut open {
            if line == "```" {
                blocks.extend(open.take());
            } else {
                block.script += line;
                block.script.push('\n');
            }
        } else if line == "```sh" {
            let (line, script) = (number + 2, String::new());
            open = Some(Block {
                line,
                script,
                reason: reason.take(),
            });
        } else if let Some(rest) = line.strip_prefix(NOT_RUN) {
            let why = rest.strip_suffix(" -->").expect("the mark ends in the same line");
            assert!(why.len() > 5, "a reason: {line}");
            reason = Some(why.to_owned());
        } else if !line.is_empty() {
            assert_eq!(reason, None, "line {}: no block of shell follows the mark", number + 1);
        }
    }
    assert!(open.is_none(), "a block without an end");
    blocks
}

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs")
}

/// Runs a block in `folder`, with the program under test in the `PATH`.
fn run(page: &Path, block: &Block, folder: &Path) -> String {
    let mut script = block.script.clone();
    for (said, instead) in COMMANDS {
        script = script.replace(said, instead);
    }
    let program = Path::new(env!("CARGO_BIN_EXE_peft-tune"));
    let path = std::env::var("PATH").unwrap_or_default();
    let output = Command::new("sh")
        .args(["-e", "-c", &script])
        .current_dir(folder)
        .env("PATH", format!("{}:{path}", program.parent().unwrap().display()))
        .env_remove("PEFT_TUNE_DB")
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    let place = format!("{}:{}", page.display(), block.line);
    assert!(output.status.success(), "{place}: {}\n{script}\n{told}", output.status);
    told
}

/// Runs all blocks of a page that may run, and returns what they printed.
fn run_page(page: &Path, folder: &Path) -> String {
    let text = std::fs::read_to_string(page).unwrap();
    let mut told = String::new();
    for block in blocks(&text).iter().filter(|block| block.reason.is_none()) {
        told += &run(page, block, folder);
        let study = folder.join("phrases.yaml");
        if block.script.contains("> phrases.yaml") {
            make_smaller(&study);
        }
    }
    told
}

/// Makes the tutorial's study one of seconds; each line has to be there.
fn make_smaller(study: &Path) {
    let mut text = std::fs::read_to_string(study).unwrap();
    for (said, instead) in SMALLER {
        assert!(text.contains(said), "the study file has no `{said}`:\n{text}");
        text = text.replace(said, instead);
    }
    std::fs::write(study, text).unwrap();
}

/// Everything below `from`, in `to`.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Metrics that the trials of the tutorial have and that no row of the table explains.
fn unexplained(folder: &Path) -> Vec<String> {
    let sql = "select distinct name from trial_metric";
    let output = super::program()
        .args(["query", sql, "--format", "csv"])
        .current_dir(folder)
        .env_remove("PEFT_TUNE_DB")
        .output()
        .unwrap();
    let names = String::from_utf8(output.stdout).unwrap();
    let names: Vec<&str> = names.lines().skip(1).collect();
    assert!(names.len() > 15, "{names:?}");
    let known = |name: &&str| peft_tune::worker::metric_rows().iter().any(|row| row.name == *name);
    names
        .into_iter()
        .filter(|name| !known(name))
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_tutorial_and_the_how_tos_run() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("tutorial");
    std::fs::create_dir(&folder).unwrap();
    let told = run_page(&docs().join("tutorial.md"), &folder);
    assert!(told.contains("2 trainings"), "{told}");
    for file in [
        "phrases.html",
        "adapter/adapter_model.safetensors",
        "merged/model.safetensors",
        "trl/trl_sft.yaml",
    ] {
        assert!(folder.join(file).is_file(), "{file}");
    }
    assert_eq!(unexplained(&folder), Vec::<String>::new());
    // Each how-to begins in the folder that the tutorial left.
    let mut pages: Vec<PathBuf> = std::fs::read_dir(docs().join("how-to"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    pages.sort();
    assert!(pages.len() > 4, "{pages:?}");
    for page in pages {
        let own = place.path().join(page.file_stem().unwrap());
        copy(&folder, &own);
        run_page(&page, &own);
    }
}

#[test]
fn most_blocks_are_run() {
    let mut pages = vec![docs().join("tutorial.md")];
    let how_to = std::fs::read_dir(docs().join("how-to")).unwrap();
    pages.extend(how_to.map(|entry| entry.unwrap().path()));
    let (mut run, mut left) = (0, Vec::new());
    for page in &pages {
        for block in blocks(&std::fs::read_to_string(page).unwrap()) {
            match block.reason {
                None => run += 1,
                Some(reason) => left.push(format!("{}:{}: {reason}", page.display(), block.line)),
            }
        }
    }
    assert!(run > 3 * left.len(), "{run} are run, and not:\n{}", left.join("\n"));
}

#[test]
fn a_block_that_is_not_run_says_why() {
    let page = "text\n\n<!-- not run: needs a GPU -->\n```sh\na\nb\n```\n\n```text\nc\n```\n```sh\nd\n```\n";
    let found: Vec<_> = blocks(page)
        .into_iter()
        .map(|block| (block.line, block.script, block.reason))
        .collect();
    let reason = Some("needs a GPU".to_owned());
    assert_eq!(found, [(5, "a\nb\n".to_owned(), reason), (13, "d\n".to_owned(), None)]);
}
