//! Data made ready in a process of its own, with limits on memory, stack and time: tokenizers, chat templates and data files come from
//! elsewhere, and none of them may end or starve the program that reads them. What the process leaves is the cache of tokens,
//! which its parent then maps.

use std::io::{BufRead, Write};
use std::path::Path;
use std::sync::Mutex;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::EvaluatorError;
use super::child::{ChildProcess, Line, Surroundings, write_line};
use super::death::is_out_of_memory;
use peft_tune_core::recipe::Recipe;
use peft_tune_core::study::with_causes;
use peft_tune_engine::data::{PreparedData, done_so_far};
use peft_tune_engine::hub::ModelFiles;
use peft_tune_engine::profile::HostMemory;

/// Stack of the threads that read and tokenise: less than any thread of the parent has, which reads the same tokenizer and template
/// behind them.
const STACK_BYTES: usize = 3 << 19;
/// How often the process tells how far it is.
const TELL: Duration = Duration::from_millis(250);

/// What is to be made ready.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PrepareRequest {
    pub recipe: Box<Recipe>,
    pub files: ModelFiles,
    /// Bytes that the process may take.
    pub memory_limit_bytes: u64,
}

/// What the process tells.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "event")]
enum News {
    /// See [`done_so_far`].
    Progress {
        done: u64,
    },
    Ready,
    /// The data, the tokenizer or the template cannot be used.
    Refused {
        message: String,
    },
}

/// Data that cannot be made ready.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    #[error("{message}")]
    Refused { message: String },
    #[error(
        "reading the data through the tokenizer and chat template of {model} takes more than {} MiB: a row, or what the \
         tokenizer or the template makes of it, is too large",
        limit_bytes >> 20
    )]
    OutOfMemory { model: String, limit_bytes: u64 },
    #[error(
        "no row went through the tokenizer and chat template of {model} for {} s: one of them does not come to an end",
        after.as_secs()
    )]
    Stuck { model: String, after: Duration },
    #[error("the tokenizer or chat template of {model} ended the process that reads the data: {message}")]
    Ended { model: String, message: String },
    #[error(transparent)]
    Start(#[from] EvaluatorError),
}

/// Makes data ready in a process of this program, so that [`PreparedData::of_recipe`] finds them in the cache. `stuck_after` is the
/// longest time without a row. Returns what the process logged.
///
/// # Errors
/// See [`PrepareError`].
pub fn prepare_apart(program: &Path, request: &PrepareRequest, stuck_after: Duration) -> Result<String, PrepareError> {
    let (sender, lines) = channel();
    let arguments = ["prepare".to_owned()];
    let mut child = ChildProcess::start::<News>(program, &arguments, &Surroundings::default(), (0, sender))?;
    // Where it has ended, its end says why.
    let _ = child.send(request);
    child.close_input();
    let (mut done, mut moved, mut ready) = (0, Instant::now(), false);
    loop {
        let message = match lines.recv_timeout(TELL) {
            Ok((_, Line::Message(message))) => message,
            Ok((_, Line::Garbled(_) | Line::TooLong)) => continue,
            Ok((_, Line::Closed(tail))) if ready => return Ok(tail),
            Ok((_, Line::Closed(tail))) => return Err(ended(child, &tail, request)),
            Err(RecvTimeoutError::Disconnected) => return Err(ended(child, "", request)),
            Err(RecvTimeoutError::Timeout) => News::Progress { done },
        };
        match message {
            News::Ready => ready = true,
            News::Refused { message } => return Err(PrepareError::Refused { message }),
            News::Progress { done: now } if now > done => (done, moved) = (now, Instant::now()),
            News::Progress { .. } if moved.elapsed() < stuck_after => {}
            News::Progress { .. } => {
                return Err(PrepareError::Stuck {
                    model: request.files.model.clone(),
                    after: stuck_after,
                });
            }
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

/// Makes the data ready that one line of `input` asks for, and tells of it on `output`.
///
/// # Errors
/// The request cannot be read, or nobody reads the answer.
pub fn serve_prepare(mut input: impl BufRead, output: impl Write + Send) -> std::io::Result<()> {
    let mut line = String::new();
    input.read_line(&mut line)?;
    let request: PrepareRequest = serde_json::from_str(&line)?;
    // The pool of threads that tokenise; it is not there yet, and where it is, a larger stack does no harm.
    let _ = rayon::ThreadPoolBuilder::new().stack_size(STACK_BYTES).build_global();
    HostMemory::set_limit(Some(request.memory_limit_bytes));
    let output = Mutex::new(output);
    let tell = |news: &News| match output.lock() {
        Ok(mut output) => write_line(&mut *output, news),
        Err(_) => Ok(()),
    };
    let (finished, wait) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let wait = wait;
            while let Err(RecvTimeoutError::Timeout) = wait.recv_timeout(TELL) {
                let _ = tell(&News::Progress { done: done_so_far() });
            }
        });
        let prepare = || PreparedData::of_recipe(&request.recipe, &request.files).map(drop);
        let reader = std::thread::Builder::new().stack_size(STACK_BYTES);
        let outcome = reader.spawn_scoped(scope, prepare)?.join();
        drop(finished);
        tell(&match outcome {
            Ok(Ok(())) => News::Ready,
            Ok(Err(error)) => News::Refused {
                message: with_causes(&error),
            },
            Err(_) => News::Refused {
                message: "the data cannot be read: a library that reads them panicked".to_owned(),
            },
        })
    })
}
