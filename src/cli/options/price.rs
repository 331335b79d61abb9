//! Prices of devices, as `--price` gives them.

use crate::cli::CliError;
use crate::space::{HourlyPrice, QuantityError};
use peft_tune_core::predict;
use peft_tune_core::predict::DevicePrice;

/// Source of a price that the option gives, in words.
const SOURCE: &str = "--price";

/// A price of an hour, of the device that it names where it names one: `2.49/h`, `L4=0.70/h`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::cli) struct PriceOption {
    /// Name in the table of data sheets.
    device: Option<&'static str>,
    price: HourlyPrice,
}

/// Reads a price with or without its device.
pub(in crate::cli) fn price_option(text: &str) -> Result<PriceOption, String> {
    let (device, price) = match text.rsplit_once('=') {
        None => (None, text),
        Some((name, price)) => {
            let sheet = predict::device(name).map_err(|error| error.to_string())?;
            (Some(sheet.name), price)
        }
    };
    let price: HourlyPrice = price.parse().map_err(|error: QuantityError| error.to_string())?;
    Ok(PriceOption { device, price })
}

/// The price that an option gives.
pub(in crate::cli) fn given(price: HourlyPrice) -> DevicePrice {
    DevicePrice::given(price, SOURCE)
}

/// The price of a device that a plan is for: what an option says, else what the study does, else what the built-in list has.
///
/// # Errors
/// Bad input: a price of another device.
pub(in crate::cli) fn price_of_planned(
    options: &[PriceOption],
    device: Option<&str>,
    of_study: Option<&DevicePrice>,
) -> Result<Option<DevicePrice>, CliError> {
    let is_other = |option: &&PriceOption| option.device.is_some_and(|name| Some(name) != device);
    if let Some(other) = options.iter().find(is_other) {
        return Err(CliError::bad(format!(
            "`{SOURCE} \"{}=..\"`: the plan is for {}; write the price alone, or rank devices with `--gpus`",
            other.device.unwrap_or_default(),
            device.unwrap_or("this machine")
        )));
    }
    let said = options.last().map(|option| given(option.price));
    Ok(said
        .or_else(|| of_study.cloned())
        .or_else(|| DevicePrice::listed(device?)))
}

/// The price of one of many devices: what an option says of it, else what the built-in list has.
///
/// # Errors
/// Bad input: a price that names no device.
pub(in crate::cli) fn price_among(options: &[PriceOption], device: &str) -> Result<Option<DevicePrice>, CliError> {
    if options.iter().any(|option| option.device.is_none()) {
        return Err(CliError::bad(format!(
            "`{SOURCE}`: with `--gpus` a price names its device, such as `{SOURCE} \"L4=0.70/h\"`"
        )));
    }
    let of_device = options.iter().rev().find(|option| option.device == Some(device));
    let said = of_device.map(|option| given(option.price));
    Ok(said.or_else(|| DevicePrice::listed(device)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_price_may_name_its_device() {
        let bare = price_option("$2/h").unwrap();
        let named = price_option("l4=0.70/h").unwrap();
        assert_eq!((bare.device, bare.price), (None, HourlyPrice(2.0)));
        assert_eq!((named.device, named.price), (Some("L4"), HourlyPrice(0.7)));
        assert!(price_option("TPU=1/h").unwrap_err().contains("TPU"));
        assert!(price_option("L4=cheap").unwrap_err().contains("2.49/h"));
    }

    #[test]
    fn an_option_goes_before_the_study_and_that_before_the_list() {
        let study = DevicePrice::given(HourlyPrice(3.0), "the study file");
        let of = |texts: &[&str], device, study| {
            let options: Vec<PriceOption> = texts.iter().map(|text| price_option(text).unwrap()).collect();
            price_of_planned(&options, device, study).map(|price| price.map(|price| price.usd_per_h))
        };
        assert_eq!(of(&["1/h"], Some("H200"), Some(&study)).unwrap(), Some(1.0));
        assert_eq!(of(&[], Some("H200"), Some(&study)).unwrap(), Some(3.0));
        assert_eq!(of(&[], Some("H200"), None).unwrap(), Some(4.59));
        assert_eq!(of(&[], None, None).unwrap(), None);
        assert!(of(&["L4=1/h"], Some("H200"), None).is_err());
    }

    #[test]
    fn among_devices_each_price_has_its_own() {
        let options = [price_option("L4=0.70/h").unwrap()];
        let of = |device| price_among(&options, device).unwrap().map(|price| price.usd_per_h);
        assert_eq!((of("L4"), of("H200"), of("T4")), (Some(0.7), Some(4.59), None));
        let bare = [price_option("2/h").unwrap()];
        assert!(price_among(&bare, "L4").is_err());
    }
}
