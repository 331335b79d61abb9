//! `peft-tune generate`: text from a base model and, if wanted, an adapter.

use super::trained_recipe::{recipe_beside, take_template};
use crate::cli::CliError;
use crate::cli::data::prepare::prompt_tokens;
use crate::cli::options::compute::{BaseArgs, ComputeArgs};
use crate::cli::options::count::counts;
use crate::cli::terminal::download_progress::DownloadProgress;
use crate::cli::terminal::output::write_exact;
use crate::worker::Preparation;
use peft_tune_engine::hub::ModelFiles;
use peft_tune_engine::tokenizer::Tokenizer;
use peft_tune_engine::{Control, Generated, GenerationSettings, Generator, TextEnd};

/// Print text that a model generates: the base model as it is, or with an adapter.
///
/// Without `--temperature` every token is the most likely one, so the same prompt gives the same text. The text ends where
/// the model ends it, or after `--max-tokens`; the prompt is not printed.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    #[command(flatten)]
    base: BaseArgs,
    /// Text to continue.
    #[arg(long, value_name = "TEXT", required_unless_present = "chat", conflicts_with = "chat")]
    prompt: Option<String>,
    /// A user's message to answer, put into the model's chat template, or into the one that the adapter was trained
    /// with.
    #[arg(long, value_name = "TEXT")]
    chat: Option<String>,
    /// Maximum number of tokens to generate.
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = counts::<usize>(0..=u64::MAX))]
    max_tokens: usize,
    /// Draw tokens from the model's distribution at this temperature; 0 takes the most likely one.
    #[arg(long, value_name = "T", default_value_t = 0.0, value_parser = parse_temperature)]
    temperature: f64,
    /// Seed of the draws.
    #[arg(long, value_name = "N", default_value_t = 0, requires = "temperature")]
    seed: u64,
    /// Print one JSON object with the text, its tokens and why it ended.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(in crate::cli) compute: ComputeArgs,
}

/// Generates, and prints the text as it comes.
pub(in crate::cli) fn run(args: Args) -> Result<(), CliError> {
    args.compute.set_up();
    let model = args.base.name()?;
    let mut files =
        ModelFiles::resolve_watched(&model, &mut DownloadProgress::default()).map_err(CliError::bad_input)?;
    if let (Some(adapter), Some(_)) = (&args.base.adapter, &args.chat) {
        take_template(recipe_beside(adapter)?.as_ref(), &mut files);
    }
    let prompt = match &args.chat {
        Some(message) => Preparation::Chat(message.clone()),
        None => Preparation::Text(args.prompt.clone().unwrap_or_default()),
    };
    let prompt = prompt_tokens(prompt, &files)?;
    let tokenizer = Tokenizer::open(&files.tokenizer).map_err(CliError::bad_input)?;
    let precision = args.base.precision(&files)?;
    let base = args
        .compute
        .load_under(&files, precision, args.base.adapter.as_deref())?;
    let mut generator = Generator::new(base, args.base.adapter.as_deref()).map_err(CliError::bad_input)?;
    let settings = GenerationSettings {
        max_tokens: args.max_tokens,
        temperature: args.temperature,
        seed: args.seed,
        stop_ids: match args.chat {
            Some(_) => tokenizer.chat_stop_ids(),
            None => tokenizer.stop_ids(),
        },
    };
    let mut text = GrowingText::new(&tokenizer);
    let mut on_token = |token| {
        let piece = text.push(token);
        let printed = if args.json { Ok(()) } else { write_exact(&piece) };
        match printed {
            Ok(()) => Control::Continue,
            Err(_) => Control::Stop,
        }
    };
    let generated = generator.generate(&prompt, &settings, &mut on_token);
    let generated = generated.map_err(CliError::bad_input)?;
    let rest = text.rest()?;
    match args.json {
        true => write_exact(&json_line(&generated, prompt.len(), &rest)),
        false => write_exact(&format!("{}\n", &rest[text.printed..])),
    }
}

/// Text that grows token by token. A token may hold part of a character, so the text is decoded again each time, and
/// what can still change is kept back.
struct GrowingText<'a> {
    tokenizer: &'a Tokenizer,
    tokens: Vec<u32>,
    /// Bytes that have been handed out.
    printed: usize,
    text: String,
}

impl<'a> GrowingText<'a> {
    fn new(tokenizer: &'a Tokenizer) -> Self {
        Self {
            tokenizer,
            tokens: Vec::new(),
            printed: 0,
            text: String::new(),
        }
    }

    /// What a further token adds for certain.
    fn push(&mut self, token: u32) -> String {
        self.tokens.push(token);
        let Ok(text) = self.tokenizer.decode(&self.tokens, true) else {
            return String::new();
        };
        // A character that is not complete yet is decoded to the replacement character.
        if text.ends_with('\u{fffd}') || !text.starts_with(&self.text[..self.printed]) {
            return String::new();
        }
        let piece = text[self.printed..].to_owned();
        self.printed = text.len();
        self.text = text;
        piece
    }

    /// The whole text; its first `printed` bytes have been handed out.
    fn rest(&self) -> Result<String, CliError> {
        let text = self.tokenizer.decode(&self.tokens, true).map_err(CliError::failed)?;
        Ok(match text.starts_with(&self.text[..self.printed]) {
            true => text,
            false => self.text.clone(),
        })
    }
}

fn json_line(generated: &Generated, prompt_tokens: usize, text: &str) -> String {
    let end = match generated.end {
        TextEnd::StopToken => "stop_token",
        TextEnd::MaxTokens => "max_tokens",
        TextEnd::MaxPositions => "max_positions",
        TextEnd::Stopped => "stopped",
    };
    let line = serde_json::json!({
        "text": text,
        "tokens": generated.tokens,
        "prompt_tokens": prompt_tokens,
        "end": end,
    });
    format!("{line}\n")
}

fn parse_temperature(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(temperature) if temperature.is_finite() && temperature >= 0.0 => Ok(temperature),
        _ => Err("write a number from 0, such as 0.7".to_owned()),
    }
}
