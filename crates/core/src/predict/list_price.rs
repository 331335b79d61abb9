//! Prices of rented devices, as some who rent them out list them: a start where nobody says what theirs costs.
//!
//! On-demand prices of one device an hour in US dollars, without storage, traffic and tax, each with the day on which the list
//! was read. Lists change within weeks and differ twofold between providers, so that whoever shows one says whose it is and of
//! when. Devices without a row have no price.
//!
//! Sources: Lambda <https://lambda.ai/instances>, RunPod (Secure Cloud) <https://www.runpod.io/pricing>, OpenRelay
//! <https://openrelay.inc/pricing>. Where a list has a device in machines of several sizes, the row is of the smallest one.

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ListPrice {
    /// Name in the table of data sheets.
    pub device: &'static str,
    pub usd_per_h: f64,
    pub provider: &'static str,
    /// Day on which the list was read, ISO 8601.
    pub date: &'static str,
}

const fn price(device: &'static str, usd_per_h: f64, provider: &'static str, date: &'static str) -> ListPrice {
    ListPrice {
        device,
        usd_per_h,
        provider,
        date,
    }
}

/// The table.
pub const LIST_PRICES: [ListPrice; 13] = [
    price("A100 40GB", 1.99, "Lambda", "2026-09-20"),
    price("A100 80GB", 2.79, "Lambda", "2026-09-20"),
    price("A100 80GB PCIe", 1.79, "RunPod", "2026-11-09"),
    price("H100 SXM", 4.29, "Lambda", "2026-09-20"),
    price("H100 PCIe", 3.29, "Lambda", "2026-09-20"),
    price("H100 NVL", 3.19, "RunPod", "2026-11-09"),
    price("H200", 4.59, "RunPod", "2026-10-07"),
    price("B200", 6.99, "Lambda", "2026-09-20"),
    price("A10", 1.29, "Lambda", "2026-09-20"),
    price("RTX A6000", 1.09, "Lambda", "2026-09-20"),
    price("RTX 3090", 0.18, "OpenRelay", "2026-09-20"),
    price("RTX 4090", 0.29, "OpenRelay", "2026-09-20"),
    price("V100 16GB", 0.79, "Lambda", "2026-09-20"),
];

/// The listed price of the device that the table of data sheets has under this name.
pub fn list_price(device: &str) -> Option<&'static ListPrice> {
    LIST_PRICES.iter().find(|row| row.device == device)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::predict::DEVICES;

    #[test]
    fn rows_are_of_devices_with_data_sheets_each_once_and_dated() {
        for (index, row) in LIST_PRICES.iter().enumerate() {
            assert!(DEVICES.iter().any(|sheet| sheet.name == row.device), "{row:?}");
            assert!(
                LIST_PRICES[..index].iter().all(|other| other.device != row.device),
                "{row:?}"
            );
            assert!((0.05..50.0).contains(&row.usd_per_h), "{row:?}");
            let is_day = row.date.len() == 10 && row.date.split('-').all(|part| part.parse::<u16>().is_ok());
            assert!(is_day && !row.provider.is_empty(), "{row:?}");
        }
        assert_eq!(list_price("H200").unwrap().usd_per_h, 4.59);
        assert_eq!(list_price("cpu"), None);
    }
}
