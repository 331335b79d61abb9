//! Table of hyperparameters that the HParams tab reads (`tensorboard/plugins/hparams/{api,plugin_data}.proto`).
//!
//! | message | field | type | meaning |
//! |---|---|---|---|
//! | HParamsPluginData | 2 | Experiment | columns of the table |
//! | | 3 | SessionStartInfo | one row: its params |
//! | | 4 | SessionEndInfo | how it ended |
//! | Experiment | 4, 5 | HParamInfo, MetricInfo | the params and the metrics |
//! | SessionStartInfo | 1 | map of Value | params by name |
//! | | 4, 5 | string, double | name of the row, when it began |
//! | SessionEndInfo | 1, 2 | enum, double | status, when it ended |

use super::event::plugin_data;
use peft_tune_core::protobuf::Message;

/// One param, as the table sorts and filters it.
#[derive(Clone, Debug, PartialEq)]
pub enum HparamValue {
    Bool(bool),
    Number(f64),
    Text(String),
}

/// The event that names the columns: params and the tags of metrics.
pub(super) fn columns(wall_time_s: f64, params: &[&str], metrics: &[&str]) -> Vec<u8> {
    let params = params.iter().map(|param| Message::new().text(1, param));
    let metrics = metrics.iter().map(|metric| {
        let name = Message::new().text(2, metric);
        Message::new().message(1, &name)
    });
    let experiment = Message::new().messages(4, params).messages(5, metrics);
    let data = Message::new().message(2, &experiment);
    plugin_data(wall_time_s, "_hparams_/experiment", &data)
}

/// The event that begins a row with its params.
pub(super) fn session_start(wall_time_s: f64, name: &str, params: &[(&str, HparamValue)]) -> Vec<u8> {
    let params = params
        .iter()
        .map(|(param, value)| Message::new().text(1, param).message(2, &struct_value(value)));
    let session = Message::new().messages(1, params).text(4, name).double(5, wall_time_s);
    let data = Message::new().message(3, &session);
    plugin_data(wall_time_s, "_hparams_/session_start_info", &data)
}

/// The event that ends a row.
pub(super) fn session_end(wall_time_s: f64, succeeded: bool) -> Vec<u8> {
    let status = if succeeded { 1 } else { 2 };
    let session = Message::new().number(1, status).double(2, wall_time_s);
    let data = Message::new().message(4, &session);
    plugin_data(wall_time_s, "_hparams_/session_end_info", &data)
}

/// `google.protobuf.Value`: a number is field 2, a text 3, a truth value 4.
fn struct_value(value: &HparamValue) -> Message {
    match value {
        HparamValue::Number(number) => Message::new().double(2, *number),
        HparamValue::Text(text) => Message::new().text(3, text),
        HparamValue::Bool(truth) => Message::new().number(4, u64::from(*truth)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use peft_tune_core::hexadecimal;

    #[test]
    fn messages_have_protobufs_bytes() {
        // Encoded by tensorboard 2.21's own `hparams_config_pb`, in an Event at 1.5 s. Its `Experiment` also has the
        // time (field 3), which says nothing more than the event's.
        let whole = hexadecimal(&columns(1.5, &["lr", "opt"], &["objective/loss"]));
        assert!(
            whole.ends_with("22040a026c7222050a036f70742a120a10120e6f626a6563746976652f6c6f7373"),
            "{whole}"
        );
        assert!(
            whole.contains("0a145f68706172616d735f2f6578706572696d656e74420608011202120"),
            "{whole}"
        );
        // Encoded by `hparams_pb`, whose map has no fixed order: one entry here.
        let whole = hexadecimal(&session_start(1.5, "g", &[("opt", HparamValue::Text("adam".into()))]));
        assert!(
            whole.ends_with("0a0d0a036f707412061a046164616d22016729000000000000f83f"),
            "{whole}"
        );
        let number = hexadecimal(&session_start(1.5, "g", &[("lr", HparamValue::Number(1e-3))]));
        assert!(number.contains("0a0f0a026c72120911fca9f1d24d62503f"), "{number}");
    }
}
