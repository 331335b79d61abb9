//! Logs that a watched run writes beside its output: JSON lines, TensorBoard's event files, and the tokens that tools count in them.

use super::Bench;
use crate::faults::bench::messages;

#[test]
fn a_log_is_followed_also_when_it_is_rotated() {
    let bench = Bench::new();
    let script = "n=1; while [ $n -le 20 ]; do
        echo \"{\\\"current_steps\\\": $n, \\\"total_steps\\\": 20, \\\"loss\\\": 1.5}\" >> log.jsonl
        [ $n -eq 10 ] && sleep 0.3 && mv log.jsonl log.jsonl.1
        n=$((n + 1)); sleep 0.06; done";
    let output = bench
        .watch(&["--log", "log.jsonl", "--untouched"], &["sh", "-c", script])
        .output()
        .unwrap();
    let report = bench.report();
    assert_eq!(report["measured"]["steps"], 20, "{}", messages(&output));
    assert_eq!(
        (&report["measured"]["total_steps"], &report["measured"]["loss"]),
        (&20.into(), &1.5.into())
    );
}

/// A record of an event file (TFRecord), with the checksum by its bitwise definition.
fn record(content: &[u8]) -> Vec<u8> {
    let checksum = |bytes: &[u8]| {
        let sum = bytes.iter().fold(u32::MAX, |sum, byte| {
            let shift = |sum: u32| {
                if sum & 1 == 1 {
                    (sum >> 1) ^ 0x82f6_3b78
                } else {
                    sum >> 1
                }
            };
            (0..8).fold(sum ^ u32::from(*byte), |sum, _| shift(sum))
        });
        let sum = !sum;
        sum.rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
    };
    let length = (content.len() as u64).to_le_bytes();
    [&length[..], &checksum(&length), content, &checksum(content)].concat()
}

/// An event with one number, as PyTorch's `SummaryWriter` writes it.
fn scalar(at_s: f64, step: u8, tag: &str, value: f32) -> Vec<u8> {
    let mut number = vec![0x0a, tag.len() as u8];
    number.extend(tag.bytes());
    number.push(0x15);
    number.extend(value.to_le_bytes());
    let mut event = vec![0x09];
    event.extend(at_s.to_le_bytes());
    event.extend([0x10, step, 0x2a, number.len() as u8 + 2, 0x0a, number.len() as u8]);
    event.extend(number);
    record(&event)
}

/// Events of four steps, behind the start of a run that begins now; the last has a loss of 2.
fn four_steps() -> Vec<u8> {
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_secs_f64();
    let mut events = Vec::new();
    for step in 1..=4 {
        // Written behind the run's start, whatever the start takes.
        let at_s = now + 10.0 + 0.25 * f64::from(step);
        events.extend(scalar(at_s, step, "train/loss", 3.0 - f32::from(step) / 4.0));
        events.extend(scalar(
            at_s,
            step,
            "train/num_input_tokens_seen",
            100.0 * f32::from(step),
        ));
    }
    events
}

#[test]
fn event_files_of_tensorboard_tell_the_steps() {
    let bench = Bench::new();
    let events = four_steps();
    std::fs::write(bench.folder().join("events"), &events).unwrap();
    let script = "mkdir -p runs/now; head -c 100 events >runs/now/events.out.tfevents.1.host; sleep 0.2; \
                  tail -c +101 events >>runs/now/events.out.tfevents.1.host";
    assert!(bench.run(script).status.success());
    let measured = &bench.report()["measured"];
    assert_eq!(
        (&measured["steps"], &measured["loss"]),
        (&serde_json::json!(4), &serde_json::json!(2.0))
    );

    let torn = [events.as_slice(), &[0; 20]].concat();
    std::fs::write(bench.folder().join("events"), torn).unwrap();
    let output = bench.run("mkdir -p runs/then; cp events runs/then/events.out.tfevents.2.host");
    assert!(
        messages(&output).contains("was not read to its end"),
        "{}",
        messages(&output)
    );
    assert_eq!(bench.report()["measured"]["steps"], 4);
}

#[test]
fn a_folder_that_the_training_makes_late_is_followed_for_event_files() {
    let bench = Bench::new();
    std::fs::write(bench.folder().join("events"), four_steps()).unwrap();
    let script = "sleep 0.2; mkdir -p late/now; cp events late/now/events.out.tfevents.1.host";
    let output = bench.watch(&["--log", "late"], &["sh", "-c", script]).output().unwrap();
    assert_eq!(bench.report()["measured"]["steps"], 4, "{}", messages(&output));
    assert!(
        !messages(&output).contains("no steps were seen"),
        "{}",
        messages(&output)
    );
}

#[test]
fn the_last_look_reads_event_files_to_their_ends() {
    let bench = Bench::new();
    let other = scalar(1.0, 1, "other/number", 0.0);
    let events = [other.repeat((9 << 20) / other.len()), four_steps()].concat();
    std::fs::write(bench.folder().join("events"), events).unwrap();
    let output = bench.run("mkdir -p runs/now; cp events runs/now/events.out.tfevents.1.host");
    assert_eq!(bench.report()["measured"]["steps"], 4, "{}", messages(&output));
}

#[test]
fn tokens_of_one_device_count_for_all_that_are_known() {
    let bench = Bench::new();
    let line = |step: u32| format!("Step {step} | loss:1.5 lr:2e-05 tokens_per_second_per_gpu:400");
    std::fs::write(
        bench.folder().join("text"),
        (1..=4).map(|step| line(step) + "\n").collect::<String>(),
    )
    .unwrap();
    let says = "of one device alone";
    let output = bench.run("cat text");
    let report = bench.report();
    assert_eq!(report["measured"]["counted_tokens_per_s"], 400.0);
    assert!(report["unknown"].to_string().contains(says), "{}", messages(&output));
    let output = bench.watch(&["--devices", "2"], &["cat", "text"]).output().unwrap();
    let report = bench.report();
    assert_eq!(report["measured"]["counted_tokens_per_s"], 800.0);
    assert!(!report["unknown"].to_string().contains(says), "{}", messages(&output));
}
