//! Trainings that take a later quantization into account: their gradients, what is merged of them, and what is refused.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Output;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use peft_tune_core::recipe::{Checkpointing, Precision, QuantizationAware};
use peft_tune_engine::{BaseModel, Generator, Trainer};
use peft_tune_kernels::quant::{Int8, Nf4, Quantized};
use serde_json::Value;

use crate::calls::{quickstart, run, text};
use crate::golden::{base, folder as golden, gradients, recipe as of_reference, relative_error, whole_batch};

/// Families with a tensor for each projection, with fused ones, and with norms of every kind.
const FAMILIES: [&str; 6] = [
    "ref_llama",
    "ref_qwen3",
    "ref_gemma2",
    "ref_phi3",
    "ref_granite",
    "ref_cohere2",
];

const FORMS: [QuantizationAware; 2] = [QuantizationAware::Int8, QuantizationAware::Nf4];

/// `weight` as the form stores it, in F32.
fn rounded(weight: &Tensor, form: QuantizationAware) -> Tensor {
    match form {
        QuantizationAware::None => weight.clone(),
        QuantizationAware::Int8 => Int8::quantize_rows(weight).unwrap().dequantize(DType::F32).unwrap(),
        QuantizationAware::Nf4 => Nf4::quantize(weight, false).unwrap().dequantize(DType::F32).unwrap(),
    }
}

/// Whether a tensor is the weight of a linear layer.
fn is_linear(name: &str) -> bool {
    name.ends_with("_proj.weight") || name.ends_with("_attn.qkv_proj.weight")
}

/// Every tensor of the model with its adapter folded in, the linear layers rounded to `form`.
fn merged(family: &str, form: QuantizationAware) -> BTreeMap<String, Tensor> {
    let adapter = golden(family).join("adapter_init");
    let generator = Generator::new(base(family, Precision::Fp32), Some(&adapter)).unwrap();
    let merged = generator.merged().unwrap();
    let names = base(family, Precision::Fp32).architecture().tensors().into_iter();
    let tensor = |name: String| {
        let value = merged.tensor(&name).unwrap();
        let value = if is_linear(&name) { rounded(&value, form) } else { value };
        (name, value)
    };
    names.map(|tensor_of| tensor(tensor_of.name)).collect()
}

/// The loss of a step and the gradients of the merged weights, where every weight of the rounded model trains: what the chain rule
/// makes the adapters' of.
fn of_whole_model(family: &str, form: QuantizationAware) -> (f64, BTreeMap<String, Tensor>) {
    let architecture = base(family, Precision::Fp32).architecture().clone();
    let tensors = merged(family, form).into_iter().collect();
    let base = BaseModel::from_tensors(architecture, tensors, Precision::Fp32, &Device::Cpu).unwrap();
    let mut recipe = of_reference(&golden(family).join("adapter_init"));
    recipe.adapter = None;
    let mut trainer = Trainer::new(Arc::new(base), &recipe, 20).unwrap();
    let loss = trainer.step(&whole_batch(family)).unwrap().loss;
    (loss, gradients(trainer.parameters()))
}

#[test]
fn gradients_pass_straight_through_the_rounding() {
    for family in FAMILIES {
        for form in FORMS {
            let (loss, of_weights) = of_whole_model(family, form);
            let mut recipe = of_reference(&golden(family).join("adapter_init"));
            recipe.quantization_aware = form;
            let mut trainer = Trainer::new(base(family, Precision::Fp32), &recipe, 20).unwrap();
            let event = trainer.step(&whole_batch(family)).unwrap();
            assert!(
                (event.loss / loss - 1.0).abs() < 1e-5,
                "{family} {form}: {} {loss}",
                event.loss
            );
            let mut plain = of_reference(&golden(family).join("adapter_init"));
            plain.quantization_aware = QuantizationAware::None;
            let mut plain = Trainer::new(base(family, Precision::Fp32), &plain, 20).unwrap();
            assert_ne!(plain.step(&whole_batch(family)).unwrap().loss, event.loss);
            let adapter = &recipe.adapter.as_ref().unwrap();
            let scaling = adapter.scaling(adapter.rank, adapter.alpha);
            let mut compared = 0;
            // The first step changes the values: those that it began with are the adapter's own.
            let fresh = Trainer::new(base(family, Precision::Fp32), &recipe, 20).unwrap();
            let fresh = values(&fresh);
            for (name, gradient) in gradients(trainer.parameters()) {
                let Some((module, is_a)) = module_of(&name) else {
                    continue;
                };
                let of_weight = &of_weights[&format!("{module}.weight")];
                let [a, b] =
                    ["lora_A", "lora_B"].map(|part| &fresh[&name.replace("lora_A", part).replace("lora_B", part)]);
                let expected = match is_a {
                    true => (b.t().unwrap().matmul(of_weight).unwrap() * scaling).unwrap(),
                    false => (of_weight.matmul(&a.t().unwrap()).unwrap() * scaling).unwrap(),
                };
                let error = relative_error(&gradient, &expected);
                assert!(error < 2e-5, "{family} {form} {name}: {error:.1e}");
                compared += 1;
            }
            assert!(compared >= 8, "{family}: {compared} gradients");
        }
    }
}

/// The module of an adapter's factor in the base checkpoint, and whether it is A.
fn module_of(name: &str) -> Option<(String, bool)> {
    let inner = name.strip_prefix("base_model.model.")?;
    let (module, part) = inner.split_once(".lora_")?;
    Some((module.to_owned(), part.starts_with('A')))
}

/// Values by the names of their gradients.
fn values(trainer: &Trainer) -> BTreeMap<String, Tensor> {
    let parameters = trainer.parameters();
    let slots = parameters.layout.slots().iter().enumerate();
    slots
        .map(|(index, slot)| (slot.name.clone(), parameters.value(index).unwrap().copy().unwrap()))
        .collect()
}

#[test]
fn layers_that_run_again_multiply_the_same_codes() {
    for family in ["ref_llama", "ref_phi3"] {
        for precision in [Precision::Fp32, Precision::Bf16] {
            for form in FORMS {
                let losses = |checkpointing| {
                    let mut recipe = of_reference(&golden(family).join("adapter_init"));
                    (recipe.quantization_aware, recipe.precision) = (form, precision);
                    recipe.gradient_checkpointing = checkpointing;
                    let mut trainer = Trainer::new(base(family, precision), &recipe, 20).unwrap();
                    crate::golden::losses(&mut trainer, &whole_batch(family), 4)
                };
                let kept = losses(Checkpointing::None);
                assert!(kept[4] < kept[0], "{family} {form}: {kept:?}");
                assert_eq!(losses(Checkpointing::Full), kept, "{family} {precision} {form}");
            }
        }
    }
}

#[test]
fn factors_that_are_not_finite_show_in_the_loss() {
    let mut recipe = of_reference(&golden("ref_llama").join("adapter_init"));
    recipe.quantization_aware = QuantizationAware::Int8;
    let mut trainer = Trainer::new(base("ref_llama", Precision::Fp32), &recipe, 20).unwrap();
    let values = &trainer.parameters().values;
    let one = Tensor::new(&[f32::NAN], &Device::Cpu).unwrap();
    values.slice_set(&one, 0, 3).unwrap();
    assert!(trainer.evaluate(&whole_batch("ref_llama")).unwrap().loss.is_nan());
}

/// Trains on the quickstart's model into a folder of this name, with `settings` at the end of the recipe.
fn train(folder: &Path, name: &str, settings: &str) -> Output {
    let quickstart = quickstart();
    let recipe = format!(
        "model: {quickstart}/base\ndata: {{train: {quickstart}/train.jsonl, held_out: {quickstart}/held_out.jsonl}}\n\
         batch: {{micro_batch: 4, sequence_length: 128}}\noptimizer: {{learning_rate: 2e-3}}\nprecision: bf16\n\
         training: {{length: {{steps: 12}}, evaluation_rows: 8}}\n{settings}\n"
    );
    std::fs::write(folder.join(format!("{name}.yaml")), recipe).unwrap();
    run(folder, &["train", &format!("{name}.yaml"), "--output", name, "--json"])
}

fn held_out_loss(output: &Output) -> f64 {
    assert!(output.status.success(), "{}", text(output));
    let lines = String::from_utf8(output.stdout.clone()).unwrap();
    let end: Value = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
    end["held_out_loss"].as_f64().unwrap()
}

/// The losses that `merge --check` tells: merged and quantized, and beside the base weights.
fn checked(folder: &Path, adapter: &str, form: &str) -> [f64; 2] {
    let output = format!("{adapter}_{form}");
    let arguments = [
        "merge",
        "--adapter",
        adapter,
        "--output",
        &output,
        "--quantize",
        form,
        "--check",
    ];
    let merged = run(folder, &arguments);
    assert!(merged.status.success(), "{}", text(&merged));
    let said = String::from_utf8(merged.stdout).unwrap();
    let number = |after: &str| {
        said.split(after)
            .nth(1)
            .unwrap()
            .split(' ')
            .next()
            .unwrap()
            .parse()
            .unwrap()
    };
    [number("held-out loss "), number("quantized, ")]
}

#[test]
fn the_loss_of_the_training_is_that_of_the_merged_and_quantized_model() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for form in ["int8", "nf4"] {
        let loss = held_out_loss(&train(folder, form, &format!("quantization_aware: {form}")));
        let [rounded, _] = checked(folder, form, form);
        assert!((rounded - loss).abs() < 1e-4, "{form}: {rounded} {loss}");
        // The model as it is read back, with an adapter that changes nothing.
        let model = folder.join(format!("{form}_{form}"));
        let untrained = format!(
            "precision: {form}\ntraining: {{length: {{steps: 1}}, evaluation_rows: 8}}\noptimizer: {{learning_rate: 1e-12}}"
        );
        let recipe = std::fs::read_to_string(folder.join(format!("{form}.yaml"))).unwrap();
        let kept = recipe
            .lines()
            .filter(|line| line.starts_with("data") || line.starts_with("batch"));
        let kept: Vec<&str> = kept.collect();
        let recipe = format!("model: {}\n{}\n{untrained}\n", model.display(), kept.join("\n"));
        std::fs::write(folder.join("again.yaml"), recipe).unwrap();
        let again = run(
            folder,
            &["train", "again.yaml", "--output", &format!("again_{form}"), "--json"],
        );
        let again = held_out_loss(&again);
        assert!((again / loss - 1.0).abs() < 1e-5, "{form}: {again} {loss}");
    }
}

#[test]
fn a_training_that_knows_of_the_rounding_keeps_more_through_it() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    held_out_loss(&train(folder, "plain", ""));
    held_out_loss(&train(folder, "aware", "quantization_aware: nf4"));
    let [without, plain] = checked(folder, "plain", "nf4");
    let [with, aware] = checked(folder, "aware", "nf4");
    // What was learned beside unquantized weights changes more when they are quantized.
    assert!(with / aware < without / plain, "{plain} {without}, {aware} {with}");
    // Another form was never measured, and it is said.
    let other = run(
        folder,
        &["merge", "--adapter", "aware", "--output", "other", "--quantize", "int8"],
    );
    assert!(
        text(&other).contains("trained with `quantization_aware: nf4`"),
        "{}",
        text(&other)
    );
    let plain = run(folder, &["merge", "--adapter", "aware", "--output", "unquantized"]);
    assert!(text(&plain).contains("than `--quantize nf4`"), "{}", text(&plain));
}

#[test]
fn what_it_cannot_go_with_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for (settings, words) in [
        (
            "quantization_aware: int8\nadapter: {dora: true}",
            "cannot be combined with `dora`; set `dora` to false",
        ),
        ("quantization_aware: int8\nadapter: {dropout: 0.1}", "`dropout` above 0"),
        (
            "quantization_aware: int8\nprecision_schedule: fp32_2",
            "`precision_schedule: fp32_2`",
        ),
        ("quantization_aware: int8\nadapter: null", "full fine-tuning"),
        ("quantization_aware: int4", "one of none, int8, nf4"),
    ] {
        let output = train(folder, "refused", settings);
        assert!(
            !output.status.success() && text(&output).contains(words),
            "{settings}: {}",
            text(&output)
        );
        assert!(!folder.join("refused/run.json").exists(), "{settings}");
    }
    let adapter = run(folder, &["merge", "--adapter", "nowhere", "--output", "out", "--check"]);
    assert!(text(&adapter).contains("--quantize"), "{}", text(&adapter));
}

#[test]
fn a_search_compares_a_training_with_and_without() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let quickstart = quickstart();
    let space = format!(
        "study: own\nmodel: {quickstart}/base\n\
         data: {{train: {quickstart}/train.jsonl, held_out: {quickstart}/held_out.jsonl}}\nconfirm: none\n\
         trial: {{sequence_length: 128, profile_steps: 1, profile_warmup: 1, training_steps: 2, evaluation: {{rows: 4}}}}\n\
         objectives: [throughput, peak_memory, loss_kept_percent]\nsampler: grid\nbudget: {{trials: 4}}\n\
         space:\n  precision: [bf16, nf4]\n  rank: 4\n  micro_batch: 4\n  \
         quantization_aware: {{choices: [none, nf4], when: {{precision: [bf16]}}}}\n"
    );
    std::fs::write(folder.join("space.yaml"), space).unwrap();
    let output = run(folder, &["search", "space.yaml"]);
    assert!(output.status.success(), "{}", text(&output));
    let sql = "select p.value, m.value from trial_param p join trial_metric m on m.study = p.study and m.trial = p.trial \
               where p.name = 'quantization_aware' and m.name = 'loss_kept_percent' order by p.value";
    let table = run(folder, &["query", sql, "--format", "csv"]);
    let said = String::from_utf8(table.stdout).unwrap();
    let rows: Vec<(&str, f64)> = said
        .lines()
        .skip(1)
        .map(|row| row.split_once(',').unwrap())
        .map(|(form, kept)| (form, kept.parse().unwrap()))
        .collect();
    let [("nf4", with), ("none", without)] = rows[..] else {
        panic!("{said}")
    };
    // Codes of 4 bits say something else than 16 bits, and the trial tells how far it is from fp32.
    assert!((with - without).abs() > 0.2 && (80.0..120.0).contains(&with), "{said}");
}
