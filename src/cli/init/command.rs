//! `peft-tune init`: writes a study file for one model, one data set and one memory limit.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use super::args::Args;
use super::base_model::{check_model, family};
use super::columns::format_of;
use super::questions::Asker;
use super::study_file::{survey, write};
use super::{chat, found_here, from_config};
use crate::cli::CliError;
use crate::cli::data::model_family::ModelFamily;
use crate::cli::data::rows::first_row;
use crate::cli::terminal::output::tell;
use crate::draft::{Answers, Chosen, Machine, Plan, RowTokens, first_file, row_lengths, study_file};
use crate::report::bytes;
use crate::space::{ReadOptions, StudyFile};
use peft_tune_core::recipe::DataFormat;

pub(in crate::cli) fn run(args: Args) -> Result<(), CliError> {
    if let Some(from) = &args.from {
        return from_config::run(&args, from);
    }
    let mut answers = answers(&args)?;
    let family = family(&answers.model)?;
    let architecture = family.as_ref().and_then(ModelFamily::architecture);
    let rows = row_tokens(&mut answers);
    let mut plan = Plan::new(architecture, &rows, &answers).map_err(CliError::bad_input)?;
    plan.trains_in_trl = matches!(family, Some(ModelFamily::Other(_)));
    let longer = rows.longer(plan.sequence_length);
    let text = study_file(&answers, &plan, longer.as_ref(), &args.output);
    // Checked as a search will read it, before anything is written.
    let options = ReadOptions { check_files: true };
    let study = StudyFile::parse(&args.output, &text, options).map_err(|error| {
        CliError::failed(anyhow::anyhow!(
            "the file that init makes is not valid: {}",
            error.rendered(false)
        ))
    })?;
    for left_out in &plan.left_out {
        tell(format_args!("left out: {left_out}"));
    }
    if let Some(architecture) = architecture {
        tell(format_args!("{}", survey(&study, architecture, &answers.machine)));
    }
    write(&args, &text)?;
    show_first_row(&args.output, &answers);
    let chosen = Chosen {
        plan: &plan,
        rows: &rows,
        longer: longer.as_ref(),
    };
    tell(chosen.table());
    if let Some(note) = plan.size.slow_note(answers.machine.is_gpu) {
        tell(format_args!("warning: {note}"));
    }
    Ok(())
}

/// How long the rows are, and whether they are trained as chats, which is told.
fn row_tokens(answers: &mut Answers) -> RowTokens {
    let counted = chat::count(answers);
    if answers.as_plain.is_some() {
        tell(format_args!(
            "prompts and completions are trained as chats, by the model's chat template: `format: alpaca` in the file, \
             which says how to train them as plain text"
        ));
    }
    if answers.format == DataFormat::PromptCompletion && chat::is_unknown(&answers.model) {
        tell(format_args!(
            "the model's tokenizer is not here: rows are trained as plain prompt and completion; where it has a chat \
             template, run `init` again once it is on this machine"
        ));
    }
    match counted {
        Some(lengths) => RowTokens::Counted(lengths),
        None => RowTokens::guessed(row_lengths(&first_file(&answers.data))),
    }
}

/// Shows the first row as it is trained, where the model's tokenizer is here, and says where it is no chat though it could
/// be one.
fn show_first_row(output: &Path, answers: &Answers) {
    let Some(row) = first_row(output) else { return };
    tell(format_args!(
        "the first row as it is trained, with what is learnt in brackets:\n{}",
        row.text.trim_end()
    ));
    let is_plain = answers.format == DataFormat::PromptCompletion && !row.is_chat;
    if is_plain && chat::has_template(&answers.model) {
        tell(format_args!(
            "rows are trained as plain prompt and completion, although the model has a chat template: to train chats, write \
             the rows as `messages` (docs/data.md)"
        ));
    }
}

fn answers(args: &Args) -> Result<Answers, CliError> {
    let machine = Machine::look();
    let mut asker = Asker::new(!args.yes && std::io::stdin().is_terminal());
    let model = match &args.model {
        Some(model) => model.clone(),
        None => asker.choose("Base model", "--model", &found_here::models(), check_model)?,
    };
    let data = match &args.data {
        Some(data) => data.clone(),
        None => {
            let files = found_here::data_files(Path::new("."));
            let check = |path: &str| format_of(Path::new(path), None).map(drop);
            PathBuf::from(asker.choose("Training data", "--data", &files, check)?)
        }
    };
    let (format, columns) = format_of(&data, args.columns.as_ref())?;
    // Who named them knows.
    for (name, column) in columns.iter().filter(|_| args.columns.is_none()) {
        tell(format_args!(
            "the column `{column}` is taken as `{name}`; --columns says otherwise"
        ));
    }
    let memory_bytes = match args.memory {
        Some(memory) => memory.0,
        None => {
            let offered = bytes(machine.usable_bytes as f64);
            asker.memory(&offered, machine.usable_bytes)?
        }
    };
    Ok(Answers {
        model,
        data,
        format,
        columns,
        as_plain: None,
        memory_bytes,
        machine,
    })
}
