//! The documents: widths, links, and what they say of commands, exit codes and predictions.

use assert_cmd::assert::OutputAssertExt;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use peft_tune::cli::command_line_error;

/// Columns of a line of prose.
const LINE: usize = 110;
/// Characters of a cell of a table.
const CELL: usize = 200;
/// Beginning of a line of the notebook that runs the program, which its kernel need not have on its `PATH`.
const NOTEBOOK_PROGRAM: &str = "!\"{sys.executable}\" -m peft_tune ";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The Markdown files of `folder`, not of those in it.
fn markdown(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths
        .filter(|path| path.extension().is_some_and(|ext| ext == "md"))
        .collect()
}

/// The Markdown files of `folder` and of those in it.
fn pages(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let below = entries.filter(|path| path.is_dir()).flat_map(|path| pages(&path));
    below.chain(markdown(folder)).collect()
}

/// Every document of the repository.
fn documents() -> Vec<PathBuf> {
    let crates = std::fs::read_dir(root().join("crates")).into_iter().flatten();
    let mut paths: Vec<PathBuf> = ["", "integrations", "search_spaces/quickstart", "tests/golden"]
        .map(|folder| root().join(folder))
        .into_iter()
        .chain(crates.map(|entry| entry.unwrap().path()))
        .flat_map(|folder| markdown(&folder))
        .chain(pages(&root().join("docs")))
        .collect();
    paths.sort();
    assert!(paths.len() > 15, "{paths:?}");
    paths
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The lines outside fenced code, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    text.lines().enumerate().filter_map(move |(number, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        (!fenced && !fence).then_some((number + 1, line))
    })
}

#[test]
fn lines_and_cells_are_short_enough_to_read() {
    let mut long = Vec::new();
    for path in documents() {
        let text = read(&path);
        for (number, line) in prose(&text) {
            let ok = if line.starts_with('|') {
                line.split('|').all(|cell| cell.trim().chars().count() <= CELL)
            } else {
                // A lone link cannot be broken.
                line.chars().count() <= LINE || !line.trim().contains(' ')
            };
            if !ok {
                long.push(format!("{}:{number}", path.display()));
            }
        }
    }
    assert!(
        long.is_empty(),
        "lines over {LINE} columns or cells over {CELL} characters:\n{}",
        long.join("\n")
    );
}

/// Lines of code and rows of tables count here too: whoever sees the first page sees it in a browser's column.
#[test]
fn all_lines_of_the_first_page_are_short() {
    let text = read(&root().join("README.md"));
    let long: Vec<usize> = text
        .lines()
        .enumerate()
        .filter(|(_, line)| line.chars().count() > LINE)
        .map(|(number, _)| number + 1)
        .collect();
    assert!(long.is_empty(), "README.md: lines over {LINE} columns: {long:?}");
}

#[test]
fn the_first_screen_has_both_commands_and_a_picture() {
    let text = read(&root().join("README.md"));
    let screen: Vec<&str> = text.lines().take(30).collect();
    let has = |start: &str| screen.iter().any(|line| line.starts_with(start));
    assert!(
        has("cargo run --release -- search search_spaces/quickstart.yaml"),
        "{screen:?}"
    );
    assert!(has("cargo test") && has("!["), "{screen:?}");
}

/// The targets of the links of a document.
fn links(text: &str) -> Vec<&str> {
    prose(text)
        .flat_map(|(_, line)| line.split("](").skip(1))
        .filter_map(|rest| rest.split_once(')'))
        .map(|(target, _)| target)
        .collect()
}

/// The anchor of a heading, as GitHub makes it.
fn anchor(heading: &str) -> String {
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    let title = heading.trim_start_matches('#').trim().to_lowercase();
    title
        .chars()
        .filter(kept)
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

#[test]
fn links_lead_to_files_and_headings_that_exist() {
    let mut broken = Vec::new();
    for path in documents() {
        let text = read(&path);
        for link in links(&text).into_iter().filter(|link| !link.contains("://")) {
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => path.clone(),
                _ => path.parent().unwrap().join(file),
            };
            let found = heading.is_empty()
                || prose(&read(&target)).any(|(_, line)| line.starts_with('#') && anchor(line) == heading);
            if !target.exists() || !found {
                broken.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn the_table_of_contents_has_every_page_once() {
    let docs = root().join("docs");
    let summary = docs.join("SUMMARY.md");
    let text = read(&summary);
    let mut named: Vec<PathBuf> = links(&text).into_iter().map(|link| docs.join(link)).collect();
    let mut there = pages(&docs);
    there.retain(|page| *page != summary);
    named.sort();
    there.sort();
    assert_eq!(named, there, "docs/SUMMARY.md, and the pages below docs");
}

/// `llms.txt` stands at the root of the site, whose pages end in `.html` and whose first one is the index.
#[test]
fn the_list_of_pages_for_programs_has_every_page_once() {
    let docs = root().join("docs");
    let text = read(&docs.join("llms.txt"));
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("# peft-tune"));
    assert!(lines.any(|line| line.starts_with("> ")), "no summary");
    let mut listed: Vec<String> = links(&text).into_iter().map(str::to_owned).collect();
    let of_site = |page: &str| match page {
        "README.md" => "index.html".to_owned(),
        page => page.replace(".md", ".html"),
    };
    let summary = read(&docs.join("SUMMARY.md"));
    let mut pages: Vec<String> = links(&summary).into_iter().map(of_site).collect();
    listed.sort();
    pages.sort();
    assert_eq!(listed, pages, "docs/llms.txt, and docs/SUMMARY.md");
    let told = text
        .lines()
        .filter(|line| line.starts_with("- ["))
        .all(|line| line.contains("): "));
    assert!(told, "a page without a word on it");
}

/// The site has the files below `docs` alone.
#[test]
fn links_of_the_site_stay_in_it() {
    let docs = root().join("docs");
    let mut outside = Vec::new();
    for path in pages(&docs) {
        let depth = path.strip_prefix(&docs).unwrap().components().count() - 1;
        let text = read(&path);
        let ups = |link: &&str| link.split('/').take_while(|part| *part == "..").count() > depth;
        for link in links(&text).into_iter().filter(ups) {
            outside.push(format!("{}: {link}", path.display()));
        }
    }
    assert!(
        outside.is_empty(),
        "name these as code instead:\n{}",
        outside.join("\n")
    );
}

#[test]
fn files_that_the_documents_name_exist() {
    let folders = [
        "scripts",
        "tests",
        "benches",
        "examples",
        "search_spaces",
        "integrations",
        "crates",
        "src",
    ];
    let mut missing = Vec::new();
    // The changelog may name what a later version no longer has.
    for path in documents().into_iter().filter(|path| !path.ends_with("CHANGELOG.md")) {
        let text = read(&path);
        let words = text.split(|c: char| c.is_whitespace() || "`(),;:\"'[]".contains(c));
        for word in words.filter(|word| !word.contains(['*', '<', '{'])) {
            let named = word.trim_end_matches('.');
            let ours = named
                .split_once('/')
                .is_some_and(|(folder, _)| folders.contains(&folder));
            if ours && !root().join(named).exists() {
                missing.push(format!("{}: {named}", path.display()));
            }
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

#[test]
fn commands_in_the_documents_exist() {
    let mut commands = BTreeSet::new();
    for path in documents() {
        for line in read(&path).lines() {
            for (at, _) in line.match_indices("peft-tune ") {
                let (before, rest) = (&line[..at], &line[at + "peft-tune ".len()..]);
                let word: String = rest
                    .chars()
                    .take_while(|c| c.is_ascii_lowercase() || *c == '-')
                    .collect();
                let code = before.ends_with('`') || ["", "$"].contains(&before.trim());
                if code && !word.is_empty() {
                    commands.insert(word);
                }
            }
        }
    }
    assert!(commands.len() > 15, "{commands:?}");
    for command in commands {
        crate::program().args([&command, "--help"]).assert().success();
    }
}

/// The lines of code, fenced or indented by four, with the number that each begins at; a line that ends in `\\` goes on.
fn code(text: &str) -> Vec<(usize, String)> {
    let (mut fenced, mut goes_on, mut lines) = (false, false, Vec::<(usize, String)>::new());
    for (number, line) in text.lines().enumerate() {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        if fence || !(fenced || line.starts_with("    ")) {
            goes_on = false;
            continue;
        }
        let (part, more) = match line.trim().strip_suffix('\\') {
            Some(part) => (part, true),
            None => (line.trim(), false),
        };
        match lines.last_mut() {
            Some((_, start)) if goes_on => start.push_str(part),
            _ => lines.push((number + 1, part.to_owned())),
        }
        goes_on = more;
    }
    lines
}

/// The words of the program's command line that a line of a shell is: up to a comment, a pipe, a redirection or a `&`.
fn program_words(line: &str) -> Option<Vec<String>> {
    let line = line.trim_start_matches("$ ");
    let arguments = line.strip_prefix("peft-tune ").or_else(|| {
        let (options, arguments) = line.strip_prefix("cargo run ")?.split_once("-- ")?;
        (!options.contains("--example")).then_some(arguments)
    })?;
    let (mut words, mut word, mut quote) = (vec!["peft-tune".to_owned()], None::<String>, None);
    for letter in arguments.chars() {
        match (quote, letter) {
            (Some(open), _) if letter == open => quote = None,
            (None, '"' | '\'') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (None, '|' | '>' | '&' | ';') => break,
            (None, '#') if word.is_none() => break,
            (None, ' ') => words.extend(word.take()),
            _ => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    Some(words)
}

#[test]
fn command_lines_in_the_documents_are_ones_that_the_program_takes() {
    let (mut count, mut wrong) = (0, Vec::new());
    for path in documents() {
        for (number, line) in code(&read(&path)) {
            let Some(words) = program_words(&line) else { continue };
            count += 1;
            if let Some(error) = command_line_error(&words) {
                wrong.push(format!("{}:{number}: {line}\n{error}", path.display()));
            }
        }
    }
    assert!(count > 40, "only {count} command lines were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The notebook itself is run by a part of the gate, `.ci/parts/wheel.sh`.
#[test]
fn command_lines_in_the_notebook_are_ones_that_the_program_takes() {
    let notebook: serde_json::Value = serde_json::from_str(&read(&root().join("docs/notebook.ipynb"))).unwrap();
    let cells = notebook["cells"].as_array().unwrap();
    let lines = cells.iter().filter_map(|cell| cell["source"].as_array()).flatten();
    let lines = lines.filter_map(|line| line.as_str()?.trim_end().strip_prefix(NOTEBOOK_PROGRAM));
    let (mut count, mut wrong) = (0, Vec::new());
    for line in lines {
        count += 1;
        let words = program_words(&format!("peft-tune {line}")).unwrap();
        wrong.extend(command_line_error(&words).map(|error| format!("{line}\n{error}")));
    }
    assert!(count > 3, "only {count} command lines were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_command_line_with_an_unknown_option_or_value_is_not_taken() {
    let error = |line| command_line_error(&program_words(line).unwrap());
    assert!(
        error("peft-tune search space.yaml --trial 4")
            .unwrap()
            .contains("--trial")
    );
    assert!(
        error("$ peft-tune export --format toml --output run")
            .unwrap()
            .contains("toml")
    );
    assert!(
        error("cargo run --release -- serch space.yaml")
            .unwrap()
            .contains("serch")
    );
    assert_eq!(error("peft-tune query \"select 1 | 2\" > rows.csv # --nothing"), None);
    assert_eq!(error("peft-tune search --help"), None);
}

#[test]
fn the_documents_list_every_exit_code() {
    let document = read(&root().join("docs/exit-codes.md"));
    let codes: Vec<u8> = document
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(' ').next()?.parse().ok())
        .collect();
    assert_eq!(codes, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 126, 127, 129, 130, 143]);
}

/// `docs/benchmarks/literature.csv` is checked against the prediction by a unit test.
#[test]
fn the_page_on_gpus_has_the_predicted_table() {
    let document = read(&root().join("docs/gpu.md"));
    for row in read(&root().join("docs/benchmarks/literature.csv")).lines().skip(1) {
        let (setting, figures) = row.rsplit_once("\",").unwrap();
        let (none, full) = figures.split_once(',').unwrap();
        let row = format!("| {} | {none} | {full} |", setting.trim_start_matches('"'));
        assert!(document.contains(&row), "{row}");
    }
}

#[test]
fn measured_results_say_where_when_and_how() {
    for entry in std::fs::read_dir(root().join("docs/benchmarks")).unwrap() {
        let path = entry.unwrap().path();
        let text = read(&path);
        let mut rows = text.lines();
        let header = rows.next().unwrap();
        let begins = ["machine,date,command,", "source,date,"];
        let is_told = begins.iter().any(|begin| header.starts_with(begin));
        assert!(is_told || path.ends_with("literature.csv"), "{}", path.display());
        assert!(rows.all(|row| row.matches(',').count() >= header.matches(',').count()));
    }
}
