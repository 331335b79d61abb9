//! A command of this program in a process of its own, and its output as a tool's answer.

use std::ffi::OsString;
use std::process::Stdio;

use rmcp::model::{CallToolResult, ContentBlock, JsonObject};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;

use super::confines::Confines;
use crate::cli::CliError;

/// Bytes of an answer: more than an agent can read.
const MOST_OUTPUT: u64 = 1 << 20;
/// Bytes of messages beside it: from their beginning, and from their end, where an error stands.
const EACH_END: u64 = 32 << 10;

/// What a tool does.
pub(super) struct Work {
    /// Words of the command, its name first.
    pub words: Vec<OsString>,
    /// Words of the command whose output is the answer, where it is not the first's.
    pub then: Option<Vec<OsString>>,
    pub output: Output,
}

/// How a command prints its result.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Output {
    Json,
    /// The files that it wrote, one a line.
    Files,
}

/// A list, as an object.
#[derive(Serialize, JsonSchema)]
pub(super) struct Rows {
    /// Each an object with the columns that were asked for.
    #[schemars(with = "Vec<JsonObject>")]
    rows: Vec<Value>,
}

/// What an export answers.
#[derive(Serialize, JsonSchema)]
pub(super) struct Files {
    /// Paths of the files that it wrote.
    files: Vec<String>,
}

/// What a tool answers.
pub(super) struct Answer {
    result: Value,
    /// What the command told beside its result.
    messages: String,
}

impl Answer {
    /// The result as text and as an object, with messages behind it.
    pub(super) fn into_result(self) -> CallToolResult {
        let mut content = vec![ContentBlock::text(self.result.to_string())];
        if !self.messages.is_empty() {
            content.push(ContentBlock::text(self.messages));
        }
        let mut result = CallToolResult::success(content);
        // Clients of older versions of the protocol take objects alone.
        result.structured_content = Some(match self.result {
            Value::Array(rows) => json!(Rows { rows }),
            other => other,
        });
        result
    }
}

/// Runs what a tool does.
///
/// # Errors
/// What the command says where it fails, and an answer that is too long.
pub(super) async fn answer(work: Work, confines: &Confines) -> Result<Answer, CliError> {
    let mut said = run(&work.words, confines).await?;
    if let Some(words) = &work.then {
        let then = run(words, confines).await?;
        said.output = then.output;
        said.messages += &then.messages;
    }
    let result = match work.output {
        Output::Json => serde_json::from_str(&said.output)
            .map_err(|error| CliError::failed(anyhow::anyhow!("the command printed no JSON: {error}")))?,
        Output::Files => json!(Files {
            files: said.output.lines().map(str::to_owned).collect()
        }),
    };
    Ok(Answer {
        result,
        messages: said.messages,
    })
}

/// What a command printed.
struct Said {
    output: String,
    messages: String,
}

async fn run(words: &[OsString], confines: &Confines) -> Result<Said, CliError> {
    let mut child = Command::new(std::env::current_exe().map_err(CliError::failed)?)
        .args(words)
        .current_dir(&confines.root)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(CliError::failed)?;
    let (output, messages) = (child.stdout.take(), child.stderr.take());
    let (output, messages) = tokio::join!(first(output, MOST_OUTPUT), ends(messages, EACH_END));
    let status = child.wait().await.map_err(CliError::failed)?;
    let (output, is_whole) = output.map_err(CliError::failed)?;
    let messages = messages.map_err(CliError::failed)?;
    // 7 and 8: a plan was printed, of a setting that does not fit or may not.
    if !matches!(status.code(), Some(0 | 7 | 8)) {
        let message = messages.trim_end().trim_start_matches("error: ").to_owned();
        return Err(CliError::bad(match message.is_empty() {
            true => format!("the command ended with {status}"),
            false => message,
        }));
    }
    match is_whole {
        true => Ok(Said { output, messages }),
        false => Err(CliError::bad(format!(
            "the answer has more than {MOST_OUTPUT} bytes: ask for less, such as by `limit` in a statement"
        ))),
    }
}

/// The first bytes of a stream, and whether they are all; the others are read and dropped, so that their writer goes on.
async fn first(stream: Option<impl AsyncRead + Unpin>, most: u64) -> std::io::Result<(String, bool)> {
    let Some(mut stream) = stream else {
        return Ok((String::new(), true));
    };
    let mut bytes = Vec::new();
    (&mut stream).take(most).read_to_end(&mut bytes).await?;
    let dropped = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await?;
    Ok((String::from_utf8_lossy(&bytes).into_owned(), dropped == 0))
}

/// The beginning and the end of a stream, at most so many bytes of each, with a line between that says how many are
/// left out.
async fn ends(stream: Option<impl AsyncRead + Unpin>, each: u64) -> std::io::Result<String> {
    let Some(mut stream) = stream else {
        return Ok(String::new());
    };
    let (mut bytes, mut end, mut left_out) = (Vec::new(), Vec::new(), 0);
    (&mut stream).take(each).read_to_end(&mut bytes).await?;
    while (&mut stream).take(each).read_to_end(&mut end).await? > 0 {
        let surplus = end.len().saturating_sub(each as usize);
        end.drain(..surplus);
        left_out += surplus;
    }
    if left_out > 0 {
        bytes.extend(format!("\n[{left_out} bytes of messages are left out]\n").into_bytes());
    }
    bytes.append(&mut end);
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
