//! Values of a recipe that trials in TRL, or in unsloth, would not train as they are written: by the tool's file, the device and the
//! packages that the Python has.

use crate::cli::export::trial_files::refused;
use crate::cli::processes::interpreter::Package;
use crate::space::Loader;
use crate::tools::{is_of_bitsandbytes, is_of_schedulefree};
use peft_tune_core::recipe::{AttentionImplementation, Checkpointing, Precision, Recipe};

/// Package with quantized weights and some optimizers.
pub(super) const BITSANDBYTES: &str = "bitsandbytes";
/// Package with updates on the host.
pub(super) const DEEPSPEED: &str = "deepspeed";
/// Package by which transformers takes kernels of the hub where their own package is not installed.
pub(super) const KERNELS: &str = "kernels";

/// A value that a trial in TRL would not train as it is written.
pub(super) struct Refusal {
    /// Field of the recipe.
    pub field: &'static str,
    pub message: String,
}

/// What a stack has where trials run, which decides what values can be trained.
#[derive(Clone, Copy)]
pub(super) struct StackOnDevice<'a> {
    pub loader: Loader,
    /// Whether a trial may run on a processor.
    pub on_cpu: bool,
    /// Packages that the Python has; `None` where none was asked, which may have all.
    pub packages: Option<&'a [Package]>,
}

impl StackOnDevice<'_> {
    /// A Python that was not asked, on a GPU.
    pub(super) fn unasked(loader: Loader) -> Self {
        Self {
            loader,
            on_cpu: false,
            packages: None,
        }
    }

    fn has(self, package: &str) -> bool {
        let has = |packages: &[Package]| packages.iter().any(|one| one.name == package);
        self.packages.is_none_or(has)
    }
}

/// Reason why a recipe is not trained as it is written on models of this loader, on the processor or with the packages that there are;
/// `None` where it is.
pub(in crate::cli) fn refusal_of(
    recipe: &Recipe,
    loader: Loader,
    on_cpu: bool,
    packages: &[Package],
) -> Option<String> {
    let here = StackOnDevice {
        loader,
        on_cpu,
        packages: Some(packages),
    };
    let refusals = refusals_of(recipe, here);
    let first = refusals.into_iter().next();
    first.map(|refusal| format!("key `{}`: {}", refusal.field, refusal.message))
}

/// Settings of a recipe that a trial in TRL would not train as they are written.
pub(super) fn refusals_of(recipe: &Recipe, here: StackOnDevice<'_>) -> Vec<Refusal> {
    let (tool, title) = (here.loader.tool(), here.loader.title());
    let in_file = refused(tool, recipe, None).into_iter().map(|warning| Refusal {
        field: warning.field,
        message: format!(
            "a trial in {title} is what {title}'s file says, and of `{}` that says something else ({}); write another value, or search \
             with the native backend",
            warning.field, warning.message
        ),
    });
    let on_device = here.on_cpu.then(|| needs_of_gpu(recipe)).into_iter().flatten();
    let on_device = on_device.map(|(field, reason)| Refusal {
        field,
        message: format!("{reason}; write another value, search on a GPU, or search with the native backend"),
    });
    let needed = needs_of_packages(recipe, here).into_iter();
    let absent = needed
        .filter(|(_, package)| !here.has(package))
        .map(|(field, package)| Refusal {
            field,
            message: format!(
                "trials in {title} take this from {package}, which the Python lacks; install it there with `pip install {package}`, or write \
                 another value"
            ),
        });
    let attention = recipe.torch.attn_implementation;
    let in_fp32 = (attention.row().package.is_some() && recipe.precision == Precision::Fp32).then(|| Refusal {
        field: "torch.attn_implementation",
        message: format!(
            "`{attention}` computes in 16 bits, and the recipe in fp32; write another value, or another `precision`"
        ),
    });
    let paged = recipe.optimizer.kind.is_paged().then(|| Refusal {
        field: "optimizer.kind",
        message: format!(
            "the states of paged optimizers lie in managed memory, which PyTorch does not count and trials in {title} would not give \
             back; write another optimizer, or search with the native backend"
        ),
    });
    let on_device = on_device.chain(in_fp32);
    in_file.chain(paged).chain(on_device).chain(absent).collect()
}

/// Fields of a recipe whose values PyTorch's stack takes from a package that it can do without, with the package.
fn needs_of_packages(recipe: &Recipe, here: StackOnDevice<'_>) -> Vec<(&'static str, &'static str)> {
    let (kind, attention) = (recipe.optimizer.kind, recipe.torch.attn_implementation);
    // Packed documents keep apart in flash attention alone, which the file names where the recipe names none.
    let of_packing = AttentionImplementation::Flash2.row().package;
    let packs = recipe.batch.packing && attention.is_auto();
    let attends = [
        (attention.row().package, "torch.attn_implementation"),
        (of_packing.filter(|_| packs), "batch.packing"),
    ];
    let attends = attends.into_iter().filter(|_| !here.has(KERNELS));
    let all = [
        (recipe.precision.is_quantized(), "precision", BITSANDBYTES),
        (is_of_bitsandbytes(kind), "optimizer.kind", BITSANDBYTES),
        (is_of_schedulefree(kind), "optimizer.kind", "schedulefree"),
        (recipe.torch.use_liger_kernel, "torch.use_liger_kernel", "liger-kernel"),
        (!recipe.optimizer.offload.is_none(), "optimizer.offload", DEEPSPEED),
    ];
    let needed = all.into_iter().filter(|(is_asked, ..)| *is_asked);
    needed
        .map(|(_, field, package)| (field, package))
        .chain(attends.filter_map(|(package, field)| Some((field, package?))))
        .collect()
}

/// Fields of a recipe whose values PyTorch's stack trains on a GPU alone, with the reasons.
fn needs_of_gpu(recipe: &Recipe) -> Vec<(&'static str, &'static str)> {
    let all = [
        (
            recipe.precision.is_quantized(),
            "precision",
            "trials in TRL train on quantized weights through bitsandbytes, on a GPU only",
        ),
        (
            recipe.precision == Precision::Fp16,
            "precision",
            "trials in TRL train in fp16 on a GPU only, as its scaled gradients are made for one",
        ),
        (
            is_of_bitsandbytes(recipe.optimizer.kind),
            "optimizer.kind",
            "trials in TRL have 8-bit optimizers and Lion from bitsandbytes, on a GPU only",
        ),
        (
            recipe.batch.packing,
            "batch.packing",
            "trials in TRL keep packed documents apart by flash-attn, which needs a GPU",
        ),
        (
            recipe.gradient_checkpointing == Checkpointing::Offload,
            "gradient_checkpointing",
            "trials in TRL move activations from a GPU to the host, and on a processor there is nothing to move them from",
        ),
        (
            !recipe.batch.sharding.is_none(),
            "batch.sharding",
            "trials in TRL share weights out by FSDP, on GPUs only",
        ),
        (
            !recipe.optimizer.offload.is_none(),
            "optimizer.offload",
            "trials in TRL update on the host through DeepSpeed, beside a GPU only",
        ),
        (
            !recipe.torch.attn_implementation.row().on_cpu,
            "torch.attn_implementation",
            "trials in TRL train with this attention on a GPU only",
        ),
        (
            recipe.torch.use_liger_kernel,
            "torch.use_liger_kernel",
            "trials in TRL have liger's kernels from Triton, on a GPU only",
        ),
    ];
    let needed = all.into_iter().filter(|(is_asked, ..)| *is_asked);
    needed.map(|(_, field, reason)| (field, reason)).collect()
}
