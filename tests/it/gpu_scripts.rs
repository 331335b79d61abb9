//! The scripts around a check of a GPU, on results made by hand and on a program that stands in: arguments, the merged JSON, the tables.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

fn script(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/gpu").join(name)
}

fn has_python() -> bool {
    Command::new("python3").arg("--version").output().is_ok()
}

/// Summary of a folder's results, as `table` or `json`; without Python there is nothing to try.
fn results(form: &str, folder: &Path) -> String {
    let output = Command::new("python3")
        .args([
            "-B".as_ref(),
            script("results.py").as_os_str(),
            form.as_ref(),
            folder.as_os_str(),
        ])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A timing of peft-tune.
fn timing(shape: &str, precision: &str, batch: (u64, u64), tokens_per_s: f64, peak_gb: f64) -> Value {
    json!({
        "shape": shape, "precision": precision, "checkpointing": "none", "rows": batch.0, "length": batch.1, "message": null,
        "measured": {
            "tokens_per_s": tokens_per_s, "peak_bytes": peak_gb * 1e9, "predicted_bytes": peak_gb * 1.01e9, "mfu": 0.5,
            "switch_s": 0.25, "reserved_growth_bytes": 0,
        },
    })
}

/// Row of results that was measured with PEFT.
fn other(precision: &str, batch: (u64, u64), mode: &str, tokens_per_s: f64, peak_gb: f64) -> Value {
    json!({
        "shape": "llama-3.1-8b", "precision": precision, "checkpointing": "none", "rows": batch.0, "length": batch.1, "mode": mode,
        "tokens_per_s": tokens_per_s, "peak_bytes": peak_gb * 1e9,
    })
}

/// A folder as all parts of a check leave it.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, value: Value| std::fs::write(folder.path().join(name), value.to_string()).unwrap();
    let shape = "llama-3.1-8b";
    let failed = json!({"shape": shape, "precision": "bf16", "checkpointing": "full", "rows": 8, "length": 512,
                        "measured": null, "message": "out of memory"});
    write(
        "bench.json",
        json!({"parity": [], "bench": [
            timing(shape, "bf16", (2, 4096), 16_000.0, 20.0), timing(shape, "bf16", (8, 512), 15_000.0, 18.0),
            timing(shape, "nf4", (2, 4096), 12_000.0, 9.0), failed,
        ]}),
    );
    write(
        "peft.json",
        json!([
            other("bf16", (2, 4096), "eager", 7_000.0, 40.0), other("bf16", (2, 4096), "compile", 8_000.0, 44.0),
            other("bf16", (8, 512), "eager", 12_000.0, 20.0),
            {"shape": shape, "precision": "bf16", "rows": 2, "length": 4096, "checkpointing": "none", "mode": "liger",
             "message": "liger_kernel cannot be imported"},
        ]),
    );
    write(
        "literature.json",
        json!({"literature": [
            {"name": "all parameters, fp32", "method": "full", "precision": "fp32", "rows": 8, "length": 512, "optimizer": "adamw_8bit",
             "checkpointing": "full", "measured": {"tokens_per_s": 1500.0, "peak_bytes": 80e9},
             "passed_over": [{"optimizer": "adamw", "checkpointing": "full", "predicted_bytes": 110_000_000_000_u64, "message": null}]},
            {"name": "LoRA on NF4", "method": "lora", "precision": "nf4", "rows": 8, "length": 512, "optimizer": null,
             "checkpointing": null, "measured": null, "passed_over": []},
        ]}),
    );
    let run = |tokens_per_s: f64, passes: u64| json!({"losses": [2.0], "tokens_per_s": tokens_per_s, "peak_bytes": 3e9, "reserved_bytes": 4e9, "replayed_passes": passes, "replayed_updates": passes.div_ceil(2)});
    let pair = |precision: &str, replayed: f64, difference: f64| {
        json!({"shape": "tiny", "precision": precision, "rows": 2, "length": 128, "launched": run(1000.0, 0),
               "replayed": run(replayed, 38), "difference": difference, "message": null})
    };
    let none = json!({"shape": "tiny", "precision": "nf4", "rows": 2, "length": 128, "launched": null, "replayed": null,
                      "difference": null, "message": "out of memory"});
    write(
        "graphs.json",
        json!({"graphs": [pair("fp32", 1500.0, 0.0), pair("bf16", 900.0, 1e-3), none]}),
    );
    let times = |form: &str, forward: f64, backward: f64| {
        json!({"form": form, "forward_s": forward, "backward_s": backward, "forward_flops_per_s": 1e12 / forward,
               "backward_flops_per_s": 2e12 / backward})
    };
    let layer = |message: Value, forms: Value, sdpa: Value| {
        json!({"shape": "tiny", "query_heads": 4, "key_heads": 2, "head_dim": 64, "rows": 2, "length": 128, "forms": forms,
               "message": message, "sdpa": sdpa})
    };
    write(
        "attention.json",
        json!({"attention": [
            layer(Value::Null, json!([times("hopper", 0.002, 0.006)]), json!([times("sdpa flash", 0.004, 0.008)])),
            layer(json!("out of memory"), json!([]), json!([])),
        ]}),
    );
    write(
        "kernels.json",
        json!({"profile": {"gpu": {"steps": 2, "seconds": 1.2, "idle_share": 0.01, "kernels": [
            {"name": "rms_norm_bf16_8", "op": "rms_norm", "calls": 65.0, "seconds": 0.006, "share": 0.01}]}}, "diagnosis": []}),
    );
    write(
        "products.json",
        json!({"shape": shape, "batch": "2x4096", "square": 8192, "square_flops_per_s": 780e12, "copy_bytes_per_s": 4.3e12, "timed": [
            {"product": "q", "rows": 8192, "inner": 4096, "columns": 4096, "seconds": 0.0004, "flops_per_s": 687e12,
             "bytes_per_s": 419e9, "of_ceiling": 0.88}]}),
    );
    write("search_3b.json", json!({"trials": 60, "seconds": 840}));
    for (part, status) in [
        ("bench", 0),
        ("graphs", 0),
        ("peft", 0),
        ("literature", 0),
        ("search_3b", 1),
    ] {
        let file = folder.path().join(format!("{part}.status"));
        std::fs::write(file, format!("{status}\t100\t1700000000\n")).unwrap();
    }
    std::fs::write(folder.path().join("device.csv"), "name, driver\nNVIDIA H100, 580\n").unwrap();
    folder
}

#[test]
fn every_measure_that_is_aimed_at_has_a_line_in_the_json() {
    if !has_python() {
        return;
    }
    let folder = folder();
    results("json", folder.path());
    let text = std::fs::read_to_string(folder.path().join("results.json")).unwrap();
    let results: Value = serde_json::from_str(&text).unwrap();
    for part in ["bench", "graphs", "peft", "literature", "search_3b", "targets"] {
        assert!(
            results[part].is_array() || results[part].is_object(),
            "{part} in {text}"
        );
    }
    assert_eq!(results["device"], "NVIDIA H100, 580");
    let found: Vec<(String, Value, Value)> = results["targets"]
        .as_array()
        .unwrap()
        .iter()
        .map(|line| {
            let measure = line["measure"].as_str().unwrap().to_owned();
            (measure, line["value"].clone(), line["met"].clone())
        })
        .collect();
    let expect = |measure: &str, value: Value, met: bool| {
        let line = found.iter().find(|line| line.0.starts_with(measure));
        let line = line.unwrap_or_else(|| panic!("{measure} is not among {found:?}"));
        assert_eq!((&line.1, &line.2), (&value, &json!(met)), "{measure}");
    };
    // The worst decides: 15,000 over 12,000 tokens/s, 18 over 20 GB. NF4 has nothing of PEFT's beside it.
    expect("tokens/s over PEFT's best", json!(1.25), false);
    expect("peak memory over PEFT's least", json!(0.9), false);
    expect("MFU of llama-3.1-8b", json!(0.5), true);
    // The first setting of each base model does not count.
    expect("seconds from trial to trial", json!(0.25), true);
    expect("predicted memory off by", json!(0.01), true);
    expect("bytes that steady steps ask", json!(0), true);
    expect("seconds of a search of 60 trials", json!(840), true);
    expect("losses of replayed steps off those of launched ones", json!(0.0), true);
    expect("tokens/s of replayed steps over launched ones", json!(0.9), false);
    assert_eq!(found.len(), 9);
}

#[test]
fn the_tables_hold_timings_the_literature_and_the_aims() {
    if !has_python() {
        return;
    }
    let folder = folder();
    let table = results("table", folder.path());
    for row in [
        "| llama-3.1-8b | bf16 | none | 2x4096 | 16000 | 8000 (compile) | 2.00 | 50.0 | 20.00 | 20.20 | 40.00 | 0.50 | 0.25 |",
        "| llama-3.1-8b | bf16 | none | 2x4096 | eager | 7000 | 40.00 | leanest |",
        "| llama-3.1-8b | bf16 | none | 2x4096 | compile | 8000 | 44.00 | fastest |",
        "| llama-3.1-8b | bf16 | none | 2x4096 | liger | | | liger_kernel cannot be imported |",
        "| llama-3.1-8b | nf4 | none | 2x4096 | 12000 |  |  | 50.0 | 9.00 | 9.09 |  |  | 0.25 |",
        "| llama-3.1-8b | bf16 | full | 8x512 | out of memory | | | | | | | | |",
        "| all parameters, fp32 | adamw_8bit | full | 8x512 | 1500 | 1200 | 80.0 | 48.2 | adamw full (110 GB) |",
        "| LoRA on NF4 | nothing fits | | 8x512 | | 30000 | | 9.8 |  |",
        "A step of 600.0 ms, idle for 1.0% of it.",
        "| rms_norm_bf16_8 | rms_norm | 65 | 6.000 | 1.0 |",
        "| ceiling of products | 8192 x 8192 x 8192 | | 780.0 | | |",
        "| q | 8192 x 4096 x 4096 | 0.400 | 687.0 | 419 | 88 |",
        "| tiny | 4/2 of 64 | 2x128 | hopper | 2.000 | 500 | 6.000 | 333 | 1.50 |",
        "| tiny | 4/2 of 64 | 2x128 | sdpa flash | 4.000 | 250 | 8.000 | 250 | 1.00 |",
        "| tiny | 4/2 of 64 | 2x128 | out of memory | | | | | |",
        "| tiny | fp32 | 2x128 | 1000 | 1500 | 1.50 | 3.00 | 3.00 | 0.0e+00 | 38 | 19 |",
        "| tiny | nf4 | 2x128 | out of memory | | | | | | | |",
        "| tokens/s over PEFT's best | at least 1.5 | 1.25 | 2 | llama-3.1-8b bf16 8x512 none | no |",
        "| seconds of a search of 60 trials, 3B parameters | at most 900 | 840 | 1 | 60 trials | yes |",
    ] {
        assert!(table.lines().any(|line| line == row), "{row}\nis not in\n{table}");
    }
    // Every row of a table has as many cells as its heading.
    for block in table.split("\n\n") {
        let cells: Vec<usize> = block.lines().map(|line| line.matches('|').count()).collect();
        assert!(cells.iter().all(|count| *count == cells[0]), "{block}");
    }
}

#[test]
fn what_was_not_measured_is_said() {
    if !has_python() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let table = results("table", folder.path());
    assert_eq!(table.matches("| not measured |").count(), 9, "{table}");
}

/// The check with a program that writes down its arguments, prints a row, and then does as `behaviour` says, a case of its arguments.
fn command(folder: &Path, behaviour: &str, parts: &[&str]) -> Command {
    let program = folder.join("stand-in");
    let text = format!(
        "#!/bin/sh\necho \"$@\" >> {}\necho '| a row |'\ncase \"$*\" in {behaviour} ;; esac\n",
        folder.join("calls").display()
    );
    std::fs::write(&program, text).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&program, mode).unwrap();
    let mut command = Command::new("bash");
    command.arg(script("check.sh")).args(parts);
    command.env("PEFT_TUNE", &program).env("DEVICE", "cpu");
    command.env("OUT", folder.join("out")).env("WORK", folder.join("work"));
    command
}

/// Runs it.
fn check(folder: &Path, behaviour: &str, parts: &[&str]) -> (Output, String) {
    let output = command(folder, behaviour, parts).output().unwrap();
    let calls = std::fs::read_to_string(folder.join("calls")).unwrap_or_default();
    (output, calls)
}

/// Parts in `results.json`: of each its name, its status and its log.
fn parts(folder: &Path) -> Vec<(String, Value, String)> {
    let Ok(text) = std::fs::read_to_string(folder.join("out/results.json")) else {
        return Vec::new();
    };
    let results: Value = serde_json::from_str(&text).expect("results.json is whole at every moment");
    let parts = results["parts"].as_array().unwrap().iter();
    let of_part = |part: &Value| {
        let name = part["part"].as_str().unwrap().to_owned();
        (name, part["status"].clone(), part["log"].to_string())
    };
    parts.map(of_part).collect()
}

/// A file of the archive.
fn packed(folder: &Path, name: &str) -> String {
    let output = Command::new("tar")
        .arg("-xzOf")
        .arg(folder.join("out/results.tar.gz"))
        .arg(format!("./{name}"))
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn parts_run_one_by_one_and_a_failure_stops_none() {
    if !has_python() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let wanted = ["parity", "bench", "literature"];
    let (output, calls) = check(folder.path(), "*parity*) exit 1", &wanted);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("FAILED (1): parity"), "{text}");
    let lines: Vec<&str> = calls.lines().collect();
    for (line, shape) in lines[2..5].iter().zip(["llama-3.1-8b", "llama-3.2-3b", "qwen2.5-0.5b"]) {
        let start = format!("gpu-check --device cpu --shapes {shape} --batches 2x4096,8x512 ");
        assert!(
            line.starts_with(&start) && line.ends_with(" --parts bench --precisions bf16"),
            "{line}"
        );
    }
    assert!(
        lines[5].starts_with(
            "gpu-check --device cpu --parts literature --literature-shape llama-2-7b --literature-batch 8x512 "
        ),
        "{calls}"
    );
    let statuses: Vec<(String, Value)> = parts(folder.path()).into_iter().map(|part| (part.0, part.1)).collect();
    let expected = wanted.map(|name| (name.to_owned(), json!(u8::from(name == "parity"))));
    assert_eq!(statuses, expected);
    assert_eq!(std::fs::read_dir(folder.path().join("out")).unwrap().count(), 3);
}

#[test]
fn a_part_over_its_time_is_killed_and_leaves_what_it_had_printed() {
    if !has_python() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut command = command(folder.path(), "*bench*) sleep 100", &["bench", "literature"]);
    let started = Instant::now();
    let output = command.env("LIMIT", "6").output().unwrap();
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    assert_eq!(output.status.code(), Some(1));
    let found = parts(folder.path());
    assert_eq!((&found[0].1, &found[1].1), (&json!(124), &json!(0)), "{found:?}");
    assert!(found[0].2.contains("| a row |"), "{found:?}");
    assert_eq!(packed(folder.path(), "bench.log"), "| a row |\n");
    let table = std::fs::read_to_string(folder.path().join("out/table.md")).unwrap();
    assert!(
        table.contains("What bench had when it ended (124):\n\n| a row |\n"),
        "{table}"
    );
}

/// A part's processes, as well as the script itself, may be ended by somebody else.
#[test]
fn what_was_known_before_a_kill_is_packed() {
    if !has_python() {
        return;
    }
    for (signal, status) in [("TERM", "ended"), ("KILL", "running")] {
        let folder = tempfile::tempdir().unwrap();
        let mut command = command(folder.path(), "*bench*) sleep 20", &["parity", "bench"]);
        command.env("PACK_EVERY", "1").env("LIMIT", "20").stdout(Stdio::null());
        let mut check = command.spawn().unwrap();
        // The archive is the last that is packed.
        let is_known = || packed(folder.path(), "bench.log") == "| a row |\n";
        let started = Instant::now();
        while !is_known() {
            assert!(
                started.elapsed() < Duration::from_secs(15),
                "nothing is packed while a part runs"
            );
            std::thread::sleep(Duration::from_millis(100));
        }
        let sent = Command::new("kill")
            .args(["-s", signal, &check.id().to_string()])
            .status();
        assert!(sent.unwrap().success());
        check.wait().unwrap();
        let found = parts(folder.path());
        assert_eq!((&found[0].1, &found[1].1), (&json!(0), &json!(status)), "{found:?}");
        assert!(found[1].2.contains("| a row |"), "{found:?}");
        assert!(is_known(), "the archive has lost it");
    }
}

#[test]
fn an_unknown_part_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (output, _) = check(folder.path(), "nothing) exit 1", &["speed"]);
    assert_eq!(output.status.code(), Some(2));
}

/// A sanitizer's faults are counted, and it ends where the ops do.
#[test]
fn the_sanitizer_ends_behind_the_ops() {
    if !has_python() {
        return;
    }
    let lines = |fault: &str| {
        format!("*parity*) echo 'ok   an op'; echo '{fault}'; echo 'ok   a model: gradients of step 3'; sleep 20")
    };
    for (fault, code, counted) in [
        ("", 0, "2 ops checked, 0 faults"),
        ("========= Invalid __global__ write of size 4 bytes", 1, "1 faults"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let tool = folder.path().join("sanitizer");
        std::fs::write(
            &tool,
            "#!/bin/sh\nwhile [ \"$1\" != \"$PEFT_TUNE\" ]; do shift; done\n\"$@\" &\nwait\n",
        )
        .unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&tool, mode).unwrap();
        let mut command = command(folder.path(), &lines(fault), &["sanitize"]);
        let output = command.env("SANITIZER", &tool).env("LIMIT", "30").output().unwrap();
        assert_eq!(output.status.code(), Some(code));
        assert!(
            parts(folder.path())[0].2.contains(counted),
            "{:?}",
            parts(folder.path())
        );
    }
}

/// Packs with an `nvcc` of this release, and a `cargo` that is only seen to be called.
fn pack(release: &str) -> (Option<i32>, String) {
    let toolkit = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let file = toolkit.path().join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, text).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&file, mode).unwrap();
    };
    write(
        "bin/nvcc",
        &format!("#!/bin/sh\necho 'Cuda compilation tools, release {release}, V{release}.88'\n"),
    );
    write("bin/cargo", "#!/bin/sh\nexit 7\n");
    write("lib64/stubs/libcuda.so", "");
    let path = format!(
        "{}:{}",
        toolkit.path().join("bin").display(),
        std::env::var("PATH").unwrap()
    );
    let output = Command::new("bash")
        .arg(script("pack.sh"))
        .arg(toolkit.path().join("package.tar.xz"))
        .env("PATH", path)
        .env("CUDA_HOME", toolkit.path())
        .env("NVCC", "nvcc")
        .output()
        .unwrap();
    (
        output.status.code(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

/// The driver that the documentation asks for does not load what a newer compiler makes.
#[test]
fn a_compiler_newer_than_the_pinned_one_is_refused() {
    for release in ["13.1", "14.0", "13.10"] {
        let (code, text) = pack(release);
        assert_eq!(code, Some(2), "{release}: {text}");
        assert!(
            text.contains(&format!("nvcc is of CUDA {release}, and 13.0 is the newest")),
            "{text}"
        );
    }
    for release in ["13.0", "12.9"] {
        assert_eq!(pack(release).0, Some(7), "{release} goes on to the build");
    }
    assert_eq!(pack("unknown").0, Some(2));
}

/// The search on a random model is of the space for a 24 GB card: it must stay one that is read.
#[test]
fn the_space_of_the_large_search_is_a_space() {
    let folder = tempfile::tempdir().unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let model = root.join("search_spaces/quickstart/base");
    let function = "source <(sed -n '/^random_space/,/^}/p' \"$0\"); random_space \"$1\"";
    let output = Command::new("bash")
        .args(["-c", function])
        .args([script("check.sh"), model])
        .current_dir(root)
        .output()
        .unwrap();
    let file = folder.path().join("space.yaml");
    std::fs::write(&file, &output.stdout).unwrap();
    let study = peft_tune::space::StudyFile::read(&file).unwrap();
    assert_eq!(
        (study.name.as_str(), study.constraints.len(), study.memory_limit_bytes),
        ("random-3b", 0, None)
    );
    let names: Vec<&str> = study
        .space
        .parameters
        .iter()
        .map(|parameter| parameter.name.as_str())
        .collect();
    for name in [
        "rank",
        "micro_batch",
        "precision",
        "gradient_checkpointing",
        "learning_rate",
    ] {
        assert!(names.contains(&name), "{names:?}");
    }
}
