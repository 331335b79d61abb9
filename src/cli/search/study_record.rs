//! What a search tells the database and its trials of its study.

use super::preflight::Preflight;
use crate::cli::data::model_files::files_for;
use crate::cli::machine::record::machine;
use crate::cli::processes::interpreter::Stack;
use crate::space::{Backend, Study};
use crate::store::{FINDS_LENGTH, MachineRecord, StudyRecord};
use crate::tune::Inputs;
use peft_tune_engine::data::on_disk;

/// The files that every trial reads.
pub(super) fn inputs_of(study: &Study) -> Inputs {
    let Some(base) = &study.base else {
        return Inputs::default();
    };
    let model = files_for(&study.backend, &base.model, &mut ())
        .ok()
        .map(|files| files.folder);
    let data = on_disk(&base.data).unwrap_or_else(|_| base.data.clone());
    let files = data
        .train
        .files()
        .chain(&data.chat_template)
        .chain(data.held_out.files())
        .chain(&data.retain);
    Inputs::of(model.into_iter().chain(files.cloned()))
}

/// The study as the database keeps it. What decides the meaning of a trial is its definition; the budget is not.
/// `stack` says what it is measured on, where that is not this program's own device.
pub(super) fn record_of(study: &Study, preflight: Option<Preflight>, stack: Option<&Stack>) -> StudyRecord {
    let base = study.base.as_ref();
    let (model, data_set) = preflight.map(|found| (found.model, found.data_set)).unzip();
    let backend = match &study.backend {
        Backend::Native => serde_json::Value::Null,
        // Never the interpreter: an environment that was moved is the same one. Its versions are among the study's inputs.
        Backend::Trl(backend) => serde_json::json!({(backend.loader.name()): {}}),
        Backend::Command(backend) => serde_json::json!({"command": backend.command, "folder": backend.folder}),
    };
    let mut definition = serde_json::json!({
        "base": base,
        "fixed": study.fixed,
        "space": study.space,
        "plan": study.plan,
        "memory_limit_bytes": study.memory_limit_bytes,
        "backend": backend,
    });
    if study.finds_length {
        definition[FINDS_LENGTH] = true.into();
    }
    StudyRecord {
        name: study.name.clone(),
        space_path: study.source.path().to_owned(),
        space_text: study.source.text().to_owned(),
        definition,
        objectives: study.objectives.clone(),
        constraints: study.constraints.clone(),
        seed: study.seed,
        sampler: study.sampler.kind.name().to_owned(),
        model,
        data_set,
        machine: Some(machine_of(stack)),
    }
}

/// Machine of a study: this one, with the device that PyTorch computes on where it does.
fn machine_of(stack: Option<&Stack>) -> MachineRecord {
    let machine = machine();
    match stack {
        None => machine,
        Some(stack) => match stack.devices.first() {
            Some(gpu) => MachineRecord {
                device: gpu.name.clone(),
                device_memory_bytes: gpu.bytes,
                ..machine
            },
            None => MachineRecord {
                device: "cpu".to_owned(),
                device_memory_bytes: machine.memory_bytes,
                ..machine
            },
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::{ReadOptions, StudyFile};
    use crate::store::Store;

    #[tokio::test]
    async fn a_stored_study_has_the_problem_that_is_searched() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("a.db")).await.unwrap();
        let native = "model: m\ndata: {train: [a.jsonl]}\nspace: {rank: [4, 8], learning_rate: {low: 1e-4, high: 2e-3, scale: log}}\n";
        let command = "backend: {command: [run]}\nobjectives: [loss, throughput]\nspace: {x: [1, 2]}\n";
        for (name, text) in [("native", native), ("command", command)] {
            let path = folder.path().join(format!("{name}.yaml"));
            let study = StudyFile::parse(&path, text, ReadOptions { check_files: false }).unwrap();
            let open = store.studies().begin(&record_of(&study, None, None)).await.unwrap();
            let stored = store.studies().find(Some(name)).await.unwrap();
            let space = store.definitions().search_space(open.id).await.unwrap();
            assert_eq!(stored.problem(space), study.problem(), "{name}");
            let known_at_once = study.problem().objectives.iter().any(|one| one.known_after == Some(0));
            assert_eq!(known_at_once, name == "native");
        }
    }
}
