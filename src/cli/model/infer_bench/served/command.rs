//! Measuring a server: its base model, then the adapter.

use super::measure::{ServedLoad, ServedModel};
use super::points_text::{self, NO_TOKEN};
use super::server::Server;
use crate::cli::CliError;
use crate::cli::model::infer_bench::args::Args;
use crate::cli::model::infer_bench::drawing::draw;
use crate::cli::model::infer_bench::prompts;
use crate::cli::terminal::output::{first_failure, tell, write_result};

/// Most requests at once: each has a thread and a connection.
const MOST_AT_ONCE: u32 = 1024;

/// Measures the models that were named, and prints what was found.
pub(in crate::cli::model::infer_bench) fn run(args: &Args, url: &str) -> Result<(), CliError> {
    if let Some(batch) = args.batch_sizes.iter().find(|batch| **batch > MOST_AT_ONCE) {
        return Err(CliError::bad(format!(
            "`--batch-sizes {batch}`: at most {MOST_AT_ONCE} requests are sent to a server at once; lower it"
        )));
    }
    let server = Server::new(url, args.timeout.0).map_err(CliError::bad_input)?;
    let prompts = match &args.prompts {
        Some(path) => prompts::texts(path)?,
        None => {
            return Err(CliError::bad(
                "no prompts to send to the server; name a file with `--prompts`",
            ));
        }
    };
    let named = [
        ("base", args.base.model.clone()),
        (
            "adapter",
            args.base
                .adapter
                .as_ref()
                .map(|name| name.to_string_lossy().into_owned()),
        ),
    ];
    let named: Vec<(&'static str, String)> = named
        .into_iter()
        .filter_map(|(form, name)| Some((form, name?)))
        .collect();
    match server.models().map_err(CliError::bad_input)? {
        None => tell("the server does not list its models: names are sent as they are"),
        Some(known) => {
            for (_, name) in &named {
                server.check_model(name, &known).map_err(CliError::bad_input)?;
            }
        }
    }
    let load = ServedLoad {
        server: &server,
        prompts: &prompts,
        new_tokens: args.new_tokens,
        budget_s: args.budget.0,
    };
    let mut measured = Vec::new();
    for (form, name) in named {
        measured.push(points_of(&load, form, name, &args.batch_sizes)?);
    }
    let text = match args.json {
        true => points_text::json(&measured)?,
        false => points_text::text(&measured),
    };
    first_failure([write_result(&text), draw_curve(args, server.shown(), &measured)])
}

/// Draws the curve where it is asked for, and where there is one.
fn draw_curve(args: &Args, address: &str, measured: &[ServedModel]) -> Result<(), CliError> {
    let curve = points_text::curve(measured);
    if curve.is_empty() && args.svg.is_some() {
        tell(format_args!("no drawing: {NO_TOKEN}"));
        return Ok(());
    }
    draw(args, &format!("{address}: time of a token against throughput"), &curve)
}

/// Points of one model for each number of requests at once.
fn points_of(load: &ServedLoad<'_>, form: &'static str, name: String, sizes: &[u32]) -> Result<ServedModel, CliError> {
    // The first answer pays for what the server loads then, an adapter among that.
    let first = load.server.answer(&name, &load.prompts[0], 2);
    first.map_err(CliError::bad_input)?;
    let mut points = Vec::new();
    for batch in sizes {
        tell(format_args!("{name}: {batch} at once, {} prompts", load.prompts.len()));
        let point = load.measure(&name, *batch as usize);
        points.push(point.map_err(CliError::bad_input)?);
    }
    Ok(ServedModel { form, name, points })
}
