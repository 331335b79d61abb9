//! Data made ready in a process of its own, with limits on memory, stack and time: tokenizers, chat templates and data files come from
//! elsewhere, and none of them may end or starve the program that reads them. What the process leaves is the cache of tokens,
//! which its parent then maps.

use std::error::Error;
use std::io::{BufRead, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Mutex;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::EvaluatorError;
use super::child::{ChildProcess, Line, Surroundings, write_line};
use super::exit_reason::is_out_of_memory;
use peft_tune_core::recipe::Recipe;
use peft_tune_core::study::with_causes;
use peft_tune_engine::data::{
    DataProgress, LookAt, PreparedData, RowsSeen, TOKENIZING_STACK_BYTES, Tokenized, done_so_far, look_at_rows,
    reading_now, tokenized_so_far,
};
use peft_tune_engine::hub::ModelFiles;
use peft_tune_engine::profile::HostMemory;
use peft_tune_engine::profile::disturbance::processor_s;
use peft_tune_engine::tokenizer::{GenerationPrompt, Specials, Tokenizer};

/// Times longer than the limit that the process may wait for a turn of the processor.
const WAITS: u32 = 10;
/// Time from one word of the process on its progress to the next.
const TELL: Duration = Duration::from_millis(250);

/// Request to a process that makes data ready.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PrepareRequest {
    pub work: Preparation,
    pub files: ModelFiles,
    /// Bytes that the process may take.
    pub memory_limit_bytes: u64,
}

/// Work of a process that makes data ready.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Preparation {
    /// The data of a recipe, in the cache of tokens.
    Data(Box<Recipe>),
    /// The tokens of a text that a model is to continue.
    Text(String),
    /// The tokens of a user's message, in the model's chat template.
    Chat(String),
    /// Rows of a recipe, to be shown.
    Rows(Box<Recipe>, LookAt),
}

/// Results of a process that made data ready.
#[derive(Debug, Default)]
pub struct Prepared {
    /// Tokens of a text; those of data lie in the cache.
    pub tokens: Vec<u32>,
    /// Rows that were asked for.
    pub rows: Option<RowsSeen>,
    /// Rows, bytes and time of tokenising data; `None` where their tokens were in the cache.
    pub tokenized: Option<Tokenized>,
    /// Log of the process.
    pub logged: String,
}

/// Message of the process.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "event")]
enum PrepareEvent {
    Progress(Progress),
    Ready {
        made: Box<Made>,
        tokenized: Option<Tokenized>,
    },
    /// The data, the tokenizer or the template cannot be used.
    Refused {
        message: String,
    },
}

/// Results that are not left in the cache.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Made {
    tokens: Vec<u32>,
    rows: Option<RowsSeen>,
}

/// Progress of the process.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Progress {
    /// Count of what is done: see [`done_so_far`].
    done: u64,
    /// Processor time that the process took so far; `None` where the system does not tell.
    processor_s: Option<f64>,
    data: DataProgress,
}

/// Watch on how long the process stays where it is.
#[derive(Debug)]
struct StuckWatch {
    stuck_after: Duration,
    last: Progress,
    since: Instant,
}

impl StuckWatch {
    fn new(stuck_after: Duration) -> Self {
        let (last, since) = (Progress::default(), Instant::now());
        Self {
            stuck_after,
            last,
            since,
        }
    }

    fn take(&mut self, now: Progress) {
        if now.done > self.last.done {
            (self.last, self.since) = (now, Instant::now());
        }
    }

    /// Whether the process worked for so long and did nothing. On a busy machine it may have waited for its turn
    /// instead, so that its processor time counts; but the wait has an end.
    fn is_over(&self, now: Progress) -> bool {
        let waited = self.since.elapsed();
        let worked = now
            .processor_s
            .map(|now| now - self.last.processor_s.unwrap_or_default());
        let has_worked = worked.is_none_or(|seconds| seconds >= self.stuck_after.as_secs_f64());
        waited >= self.stuck_after && has_worked || waited >= self.stuck_after.saturating_mul(WAITS)
    }
}

/// Data that cannot be made ready.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    #[error("{message}")]
    Refused { message: String },
    #[error(
        "reading text through the tokenizer and chat template of {model} takes more than {} MiB: a row, or what the \
         tokenizer or the template makes of it, is too large",
        limit_bytes >> 20
    )]
    OutOfMemory { model: String, limit_bytes: u64 },
    #[error(
        "no text went through the tokenizer and chat template of {model} for {} s: one of them does not come to an end",
        after.as_secs()
    )]
    Stuck { model: String, after: Duration },
    #[error("the tokenizer or chat template of {model} ended the process that reads text through them: {message}")]
    Ended { model: String, message: String },
    #[error(transparent)]
    Start(#[from] EvaluatorError),
}

/// Makes data or a text ready in a process of this program; [`PreparedData::of_recipe`] then finds data in the cache.
/// `stuck_after` is the longest time without a row. `watch` is told the progress, some times a second.
///
/// # Errors
/// See [`PrepareError`].
pub fn prepare_apart(
    program: &Path,
    request: &PrepareRequest,
    stuck_after: Duration,
    watch: &mut dyn FnMut(&DataProgress),
) -> Result<Prepared, PrepareError> {
    let (sender, lines) = channel();
    let arguments = ["prepare".to_owned()];
    let mut child = ChildProcess::start::<PrepareEvent>(program, &arguments, &Surroundings::default(), 0, sender)?;
    // Where it has ended, its end says why.
    let _ = child.send(request);
    child.close_input();
    let (mut stuck, mut latest) = (StuckWatch::new(stuck_after), Progress::default());
    let mut ready: Option<(Made, Option<Tokenized>)> = None;
    loop {
        let message = match lines.recv_timeout(TELL) {
            Ok((_, Line::Message(message))) => message,
            Ok((_, Line::Garbled(_) | Line::TooLong)) => continue,
            Ok((_, Line::Closed(logged))) => {
                return match ready {
                    Some((made, tokenized)) => Ok(Prepared {
                        tokens: made.tokens,
                        rows: made.rows,
                        tokenized,
                        logged,
                    }),
                    None => Err(ended(child, &logged, request)),
                };
            }
            Err(RecvTimeoutError::Disconnected) => return Err(ended(child, "", request)),
            Err(RecvTimeoutError::Timeout) => PrepareEvent::Progress(latest),
        };
        match message {
            PrepareEvent::Ready { made, tokenized } => ready = Some((*made, tokenized)),
            PrepareEvent::Refused { message } => return Err(PrepareError::Refused { message }),
            PrepareEvent::Progress(progress) => {
                latest = progress;
                stuck.take(progress);
                watch(&progress.data);
            }
        }
        if ready.is_none() && stuck.is_over(latest) {
            return Err(PrepareError::Stuck {
                model: request.files.model.clone(),
                after: stuck_after,
            });
        }
    }
}

fn ended(mut child: ChildProcess, tail: &str, request: &PrepareRequest) -> PrepareError {
    let status = child.wait();
    let model = request.files.model.clone();
    if is_out_of_memory(status, tail) {
        return PrepareError::OutOfMemory {
            model,
            limit_bytes: request.memory_limit_bytes,
        };
    }
    let message = super::child::describe_end(status, tail);
    PrepareError::Ended { model, message }
}

/// Makes the data ready that one line of `input` asks for, and tells of its progress on `output`.
///
/// # Errors
/// The request cannot be read, or nobody reads the answer.
pub fn serve_prepare(mut input: impl BufRead, output: impl Write + Send) -> std::io::Result<()> {
    let mut line = String::new();
    input.read_line(&mut line)?;
    let request: PrepareRequest = serde_json::from_str(&line)?;
    let pool = rayon::ThreadPoolBuilder::new()
        .stack_size(TOKENIZING_STACK_BYTES)
        .build();
    let pool = pool.map_err(std::io::Error::other)?;
    HostMemory::set_limit(Some(request.memory_limit_bytes));
    let output = Mutex::new(output);
    let tell = |news: &PrepareEvent| match output.lock() {
        Ok(mut output) => write_line(&mut *output, news),
        Err(_) => Ok(()),
    };
    let (finished, wait) = channel::<()>();
    std::thread::scope(|scope| {
        std::thread::Builder::new().spawn_scoped(scope, || {
            let wait = wait;
            while let Err(RecvTimeoutError::Timeout) = wait.recv_timeout(TELL) {
                let _ = tell(&PrepareEvent::Progress(Progress {
                    done: done_so_far(),
                    processor_s: processor_s(),
                    data: reading_now(),
                }));
            }
        })?;
        let outcome = catch_unwind(AssertUnwindSafe(|| pool.install(|| prepare(&request))));
        drop(finished);
        tell(&match outcome {
            Ok(Ok(made)) => PrepareEvent::Ready {
                made: Box::new(made),
                tokenized: tokenized_so_far(),
            },
            Ok(Err(error)) => PrepareEvent::Refused {
                message: with_causes(&*error),
            },
            Err(_) => PrepareEvent::Refused {
                message: "the data cannot be read: a library that reads them panicked".to_owned(),
            },
        })
    })
}

/// Makes data ready as the request asks.
fn prepare(request: &PrepareRequest) -> Result<Made, Box<dyn Error + Send + Sync>> {
    let open = || Tokenizer::open(&request.files.tokenizer);
    let of_tokens = |tokens| Made { tokens, rows: None };
    Ok(match &request.work {
        Preparation::Data(recipe) => {
            PreparedData::make(recipe, &request.files)?;
            Made::default()
        }
        Preparation::Text(text) => of_tokens(open()?.encode_open(text)?.ids),
        Preparation::Chat(message) => of_tokens(chat_tokens(&open()?, message)?),
        Preparation::Rows(recipe, asked) => Made {
            tokens: Vec::new(),
            rows: Some(look_at_rows(recipe, &request.files, *asked)?),
        },
    })
}

fn chat_tokens(tokenizer: &Tokenizer, message: &str) -> Result<Vec<u32>, Box<dyn Error + Send + Sync>> {
    let Some(template) = tokenizer.chat_template() else {
        return Err("the model has no chat template; use `--prompt`, or name an instruction-tuned model".into());
    };
    let messages = [serde_json::json!({"role": "user", "content": message})];
    let rendered = template
        .conversation(&messages, None)?
        .render(1, GenerationPrompt::Add)?;
    // The template writes the special tokens itself.
    Ok(tokenizer.encode(&rendered.text, Specials::Omit)?.ids)
}
