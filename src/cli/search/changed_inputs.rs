//! Noticing that a study continues on other content: its files are told apart by what they hold, not by where they lie.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use sha2::{Digest, Sha256};

use super::trl::STACK;
use crate::cli::CliError;
use crate::cli::processes::interpreter::Stack;
use crate::cli::terminal::output::tell;
use crate::space::Study;
use crate::store::{DEVICE, InputRecord, Store, TARGET_DEVICE, TARGET_STACK};
use crate::worker::Placement;
use peft_tune_core::hexadecimal;
use peft_tune_core::recipe::Recipe;
use peft_tune_core::space::Widening;
use peft_tune_core::study::{StudyRequest, TrialState};
use peft_tune_engine::data::{content_digest, on_disk};
use peft_tune_engine::hub::ModelFiles;
use peft_tune_kernels::device::first_gpu;

/// Bytes up to which a file of weights is read whole.
const WHOLE: u64 = 64 << 20;
/// Bytes of the start of a larger one, where its header lies, and of each block that is sampled from it.
const HEAD: usize = 4 << 20;
const BLOCK: usize = 64 << 10;
/// Blocks that are sampled, evenly spaced, the last one at the end.
const BLOCKS: u64 = 256;
/// Role of the shares that sets are mixed by. Studies that mix none have no such input.
pub(super) const TRAINING_WEIGHTS: &str = "training weights";

/// What the files of a recipe hold: the model's config and weights, the tokenizer, the chat template and the data.
///
/// # Errors
/// Where a file cannot be read.
pub(super) fn inputs_of(recipe: &Recipe, files: &ModelFiles) -> Result<Vec<InputRecord>, CliError> {
    let tokenizer = &files.tokenizer;
    let beside = [
        &tokenizer.config,
        &tokenizer.special_tokens_map,
        &tokenizer.chat_template,
    ];
    let data = on_disk(&recipe.data).map_err(CliError::bad_input)?;
    let roles = [
        ("config", vec![&files.config]),
        ("weights", files.weights.iter().collect()),
        (
            "tokenizer",
            std::iter::once(&tokenizer.tokenizer)
                .chain(beside.into_iter().flatten())
                .filter(|path| path.exists())
                .collect(),
        ),
        ("chat template", recipe.data.chat_template.iter().collect()),
        ("training data", data.train.files().collect()),
        ("held-out data", data.held_out.files().iter().collect()),
        ("retained data", data.retain.iter().collect()),
    ];
    let mut inputs = Vec::new();
    for (role, paths) in roles {
        for path in paths {
            let fingerprint = fingerprint(path, role == "weights")
                .map_err(|error| CliError::bad_input(anyhow::anyhow!("cannot read {}: {error}", path.display())))?;
            inputs.push(InputRecord {
                role: role.to_owned(),
                path: path.display().to_string(),
                fingerprint,
            });
        }
    }
    let shares: Vec<String> = recipe
        .data
        .train
        .sets()
        .iter()
        .map(|set| set.weight.to_string())
        .collect();
    if !shares.is_empty() {
        inputs.push(InputRecord {
            role: TRAINING_WEIGHTS.to_owned(),
            path: shares.join(", "),
            fingerprint: shares.join(" "),
        });
    }
    Ok(inputs)
}

/// What a study's trials are measured on, among its inputs: throughput and memory of another device do not compare. `stack` knows the
/// devices where trials do not run on this program's own.
pub(super) fn device_input(slot: &Placement, stack: Option<&Stack>) -> InputRecord {
    let is_cpu = slot.device.as_deref() == Some("cpu");
    let in_stack = |stack: &Stack| Some(stack.gpu(slot.device.as_deref()?)?.name.clone());
    let gpu = match stack {
        _ if is_cpu => None,
        Some(stack) => in_stack(stack),
        None => first_gpu().map(|gpu| gpu.name),
    };
    let name = gpu.unwrap_or_else(|| "cpu".to_owned());
    InputRecord {
        role: DEVICE.to_owned(),
        path: name.clone(),
        fingerprint: name,
    }
}

/// One hash of the inputs of some roles.
pub(super) fn fingerprint_of(inputs: &[InputRecord], roles: &[&str]) -> String {
    let mut hash = Sha256::new();
    for input in inputs.iter().filter(|input| roles.contains(&input.role.as_str())) {
        hash.update(&input.role);
        hash.update(&input.fingerprint);
    }
    hexadecimal(&hash.finalize())
}

/// SHA-256 of a file's content; of a large file, where `sampled`, that of its length, its start and blocks of the rest.
fn fingerprint(path: &Path, sampled: bool) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut hash = Sha256::new();
    let bytes = file.metadata()?.len();
    if !sampled || bytes <= WHOLE {
        return content_digest(path).map(|digest| hexadecimal(&digest));
    }
    hash.update(bytes.to_le_bytes());
    let mut block = vec![0; HEAD];
    file.read_exact(&mut block)?;
    hash.update(&block);
    block.truncate(BLOCK);
    let last = bytes - BLOCK as u64;
    for number in 1..=BLOCKS {
        file.seek(SeekFrom::Start(
            (u128::from(last) * u128::from(number) / u128::from(BLOCKS)) as u64,
        ))?;
        file.read_exact(&mut block)?;
        hash.update(&block);
    }
    Ok(hexadecimal(&hash.finalize()))
}

/// Relation of a study of the database to what its files hold now.
#[derive(Debug, PartialEq)]
pub(super) enum Content {
    /// The database has no study of this name, or none that says what its files held.
    Unknown,
    /// The study was made on the same content, wherever that lies now.
    Same,
    /// The study was made on other content and has another name now.
    Changed {
        /// Settings of the study's trials, to be measured anew.
        settings: Vec<StudyRequest>,
        /// The ranges that the study widened, in which the settings lie.
        widened: Vec<Widening>,
    },
}

/// Looks whether the study in the database was made on what its files hold now. With `accept`, one that was not makes room.
///
/// # Errors
/// Bad input that says what changed, where that is not accepted.
pub(super) async fn check(
    study: &Study,
    store: &Store,
    inputs: &[InputRecord],
    accept: bool,
) -> Result<Content, CliError> {
    let all = store.studies().all().await?;
    let Some(known) = all.iter().find(|known| known.name == study.name) else {
        return Ok(Content::Unknown);
    };
    let before = store.inputs().of(known.id).await?;
    if before.is_empty() && study.base.is_some() {
        return Ok(Content::Unknown);
    }
    let changes = differences(&before, inputs);
    if changes.is_empty() {
        return Ok(Content::Same);
    }
    let changes = changes.join(", ");
    if !accept {
        let name = &study.name;
        return Err(CliError::bad_input(anyhow::anyhow!(
            "study `{name}` was made on something else ({changes} changed): its results do not compare with new ones. Begin a \
             study of its own with `--as NEW_NAME`, or measure its settings again with `--accept-changed-inputs`, which \
             keeps what was measured under another name"
        )));
    }
    let trials = store.history().trials(known.id).await?;
    if trials.is_empty() {
        store.studies().delete(known.id, &known.name).await?;
        return Ok(Content::Unknown);
    }
    let settings = trials
        .into_iter()
        .filter(|trial| matches!(trial.state, TrialState::Complete { .. }));
    let settings = settings.map(|trial| StudyRequest::Enqueue(trial.params)).collect();
    let widened = store.widenings().of(known.id).await?;
    let free = |name: &String| all.iter().all(|one| one.name != *name);
    let names = (1..).map(|number| format!("{} before change {number}", study.name));
    if let Some(name) = names.into_iter().find(free) {
        store.studies().rename(known.id, &name).await?;
        tell(format_args!(
            "{changes} changed: what was measured before is study `{name}` now"
        ));
    }
    Ok(Content::Changed { settings, widened })
}

/// The inputs that differ, each with its role and path.
fn differences(before: &[InputRecord], now: &[InputRecord]) -> Vec<String> {
    let mut found = Vec::new();
    let mut roles: Vec<&str> = before.iter().chain(now).map(|input| input.role.as_str()).collect();
    roles.sort_unstable();
    roles.dedup();
    for role in roles {
        let of = |inputs: &[InputRecord]| -> Vec<InputRecord> {
            let of_role = inputs.iter().filter(|input| input.role == role);
            of_role.cloned().collect()
        };
        let (before, now) = (of(before), of(now));
        for index in 0..before.len().max(now.len()) {
            let (old, new) = (before.get(index), now.get(index));
            if old.map(|one| &one.fingerprint) == new.map(|one| &one.fingerprint) {
                continue;
            }
            match (old, new) {
                (Some(old), Some(new))
                    if [DEVICE, STACK, TARGET_STACK, TARGET_DEVICE, TRAINING_WEIGHTS].contains(&role) =>
                {
                    found.push(format!("{role} `{}` to `{}`", old.path, new.path))
                }
                // Commands compute on what they like, and so do machines that a launcher reaches. Another engine is another definition.
                _ if role == DEVICE || role == STACK => {}
                _ => found.push(format!("{role} {}", new.or(old).map_or("", |one| one.path.as_str()))),
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(role: &str, path: &str, fingerprint: &str) -> InputRecord {
        InputRecord {
            role: role.to_owned(),
            path: path.to_owned(),
            fingerprint: fingerprint.to_owned(),
        }
    }

    #[test]
    fn content_decides_and_not_the_place() {
        let before = [
            input("weights", "a/model.safetensors", "1"),
            input("training data", "a/train.jsonl", "2"),
        ];
        let moved = [
            input("weights", "b/model.safetensors", "1"),
            input("training data", "b/train.jsonl", "2"),
        ];
        assert!(differences(&before, &moved).is_empty());
        let (gpu, cpu) = (input("device", "H200", "H200"), input("device", "cpu", "cpu"));
        assert!(differences(&before, &[moved[0].clone(), moved[1].clone(), cpu.clone()]).is_empty());
        assert_eq!(differences(&[gpu], &[cpu]), ["device `H200` to `cpu`"]);
        let versions = |text: &str| input(STACK, text, text);
        assert_eq!(
            differences(&[versions("trl 1.16.0")], &[versions("trl 1.17.0")]),
            ["stack `trl 1.16.0` to `trl 1.17.0`"]
        );
        assert!(differences(&[versions("trl 1.16.0")], &[]).is_empty());
        let edited = [
            moved[0].clone(),
            input("training data", "b/train.jsonl", "3"),
            input("chat template", "t", "4"),
        ];
        assert_eq!(
            differences(&before, &edited),
            ["chat template t", "training data b/train.jsonl"]
        );
    }

    #[test]
    fn large_weights_are_told_apart_by_length_header_and_blocks() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let file = File::create(&path).unwrap();
        file.set_len(WHOLE + 12_345).unwrap();
        let of = || fingerprint(&path, true).unwrap();
        let first = of();
        assert_eq!(first, of());
        let write = |at: u64, text: &[u8]| {
            use std::io::Write;
            let mut file = File::options().write(true).open(&path).unwrap();
            file.seek(SeekFrom::Start(at)).unwrap();
            file.write_all(text).unwrap();
        };
        write(100, b"header");
        let header = of();
        assert_ne!(header, first);
        write(WHOLE + 12_300, b"end");
        assert_ne!(of(), header);
        file.set_len(WHOLE + 12_346).unwrap();
        assert_ne!(of(), header);
    }
}
