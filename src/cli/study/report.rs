//! `peft-tune report`: a study as one HTML file, and its charts as pictures.

use std::path::{Path, PathBuf};

use super::answers::{Asked, PROPOSALS};
use super::costs::{PriceArgs, costs_of};
use super::scaling::{link_findings, scaling_of};
use crate::cli::CliError;
use crate::cli::options::database::DatabaseArgs;
use crate::cli::page_output::write_page;
use crate::cli::terminal::output::tell;
use crate::dashboard::{Gatherer, importance_view};
use crate::report::charts::{Chart, charts, png};
use crate::report::html::{PageInput, StudyView, document};

/// Write a study as one HTML page that needs no network, and its charts as SVG and PNG
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Name of the study; the latest where absent
    study: Option<String>,
    /// HTML file to write [default: <STUDY>.html, unless --charts is given]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Folder to write the charts to, each as SVG and PNG; created if missing
    #[arg(long, value_name = "DIR")]
    charts: Option<PathBuf>,
    #[command(flatten)]
    price: PriceArgs,
    #[command(flatten)]
    database: DatabaseArgs,
}

pub(in crate::cli) fn run(args: Args) -> Result<(), CliError> {
    let input = args.database.read(async |store| {
        let study = store.studies().find(args.study.as_deref()).await?;
        let asked = Asked::read(store, &study).await?;
        let mut input = Gatherer::default().gather(store, &study).await?;
        input.costs = costs_of(store, &study, &input.trials, args.price.price).await?;
        input.scaling = scaling_of(store, study.id, &input.trials).await?;
        input.findings.extend(link_findings(&input.scaling));
        let answered = asked.answer(PROPOSALS);
        input.importance = answered.insight.importance().into_iter().map(importance_view).collect();
        input.answers = Some(answered.answers);
        Ok(input)
    })?;
    let view = StudyView::new(&input);
    if let Some(folder) = &args.charts {
        write_charts(folder, &charts(&view))?;
    }
    let output = match (&args.output, &args.charts) {
        (Some(output), _) => Some(output.clone()),
        (None, Some(_)) => None,
        (None, None) => Some(default_output(&input)),
    };
    if let Some(output) = output {
        let page = document(&view).map_err(CliError::failed)?;
        write(&output, page.as_bytes(), "--output")?;
    }
    Ok(())
}

/// The study's name as a file name: letters, digits, dots, dashes and underscores stay.
fn default_output(input: &PageInput) -> PathBuf {
    let plain = |character: char| {
        if character.is_alphanumeric() || "._-".contains(character) {
            character
        } else {
            '-'
        }
    };
    let name: String = input.study.chars().map(plain).take(80).collect();
    PathBuf::from(format!("{}.html", name.trim_start_matches(['.', '-'])))
}

fn write_charts(folder: &Path, charts: &[Chart]) -> Result<(), CliError> {
    const OPTION: &str = "--charts";
    std::fs::create_dir_all(folder).map_err(|error| CliError::cannot_write(folder, &error, OPTION))?;
    for chart in charts {
        write(
            &folder.join(format!("{}.svg", chart.name)),
            chart.svg.as_bytes(),
            OPTION,
        )?;
        let picture = png(&chart.svg).map_err(CliError::failed)?;
        write(&folder.join(format!("{}.png", chart.name)), &picture, OPTION)?;
    }
    Ok(())
}

/// Writes a file, which `option` names, and tells it.
fn write(path: &Path, bytes: &[u8], option: &str) -> Result<(), CliError> {
    write_page(path, bytes, option)?;
    tell(format_args!("wrote {}", path.display()));
    Ok(())
}
