//! The engine's wall clock, and `datetime.now().strftime(...)` over it.
//!
//! In: Unix seconds and the engine's offset from UTC, both from the caller: this module reads no clock and knows no time
//! zone rules. Out: what C's `strftime` writes in the C locale for a time without a zone, which is what Python's naive
//! `datetime.now()` is (so `%z` and `%Z` are empty). Directives that are not listed here are refused.

#![allow(
    clippy::arithmetic_side_effects,
    reason = "parts of a date: what is added is below 146,097 but for the year and the days, which saturate and are checked"
)]

use std::fmt::Write;

use minijinja::{Error, ErrorKind};

const DAY_SECONDS: i64 = 86_400;
const WEEKDAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// A moment as a clock on the engine's wall shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalTime {
    /// Seconds since 1970-01-01 00:00:00 UTC.
    pub unix_seconds: i64,
    /// What the engine's time zone adds to UTC, in seconds; east is positive.
    pub utc_offset_seconds: i32,
}

/// The fields of a moment.
struct Moment {
    year: i64,
    /// 1 to 12.
    month: i64,
    /// 1 to 31.
    day: i64,
    /// 1 to 366.
    day_of_year: i64,
    /// 0 is Sunday.
    weekday: i64,
    hour: i64,
    minute: i64,
    second: i64,
}

// === impl LocalTime ===

impl LocalTime {
    /// Writes the moment in the given format.
    pub(super) fn strftime(self, format: &str) -> Result<String, Error> {
        let moment = Moment::of(self)?;
        let mut out = String::with_capacity(format.len().saturating_add(16));
        let mut rest = format.chars();
        while let Some(character) = rest.next() {
            if character == '%' {
                let mut directive = rest.next();
                let padding = directive.filter(|flag| matches!(flag, '-' | '_' | '0'));
                if padding.is_some() {
                    directive = rest.next();
                }
                let directive = directive.ok_or_else(|| unknown("%"))?;
                moment.write(&mut out, directive, padding)?;
            } else {
                out.push(character);
            }
        }
        Ok(out)
    }
}

// === impl Moment ===

impl Moment {
    /// The proleptic Gregorian date, by counting in eras of 400 years that begin on the first of March.
    fn of(time: LocalTime) -> Result<Moment, Error> {
        let seconds = time.unix_seconds.saturating_add(i64::from(time.utc_offset_seconds));
        let (days, second_of_day) = (seconds.div_euclid(DAY_SECONDS), seconds.rem_euclid(DAY_SECONDS));
        let shifted = days.saturating_add(719_468);
        let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
        let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_from_march = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * day_from_march + 2) / 153;
        let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
        let year = era.saturating_mul(400).saturating_add(year_of_era + i64::from(month <= 2));
        if !(1..=9_999).contains(&year) {
            return Err(Error::new(ErrorKind::InvalidOperation, "the year is outside 1 to 9999"));
        }
        let leap = i64::from((year % 4 == 0 && year % 100 != 0) || year % 400 == 0);
        // From the first of March: January and February come after 306 days.
        let day_of_year = if month > 2 { day_from_march + 60 + leap } else { day_from_march - 306 + 1 };
        Ok(Moment {
            year,
            month,
            day: day_from_march - (153 * month_from_march + 2) / 5 + 1,
            day_of_year,
            weekday: days.saturating_add(4).rem_euclid(7),
            hour: second_of_day / 3_600,
            minute: second_of_day / 60 % 60,
            second: second_of_day % 60,
        })
    }

    fn write(&self, out: &mut String, directive: char, padding: Option<char>) -> Result<(), Error> {
        let Some((number, width, fill)) = self.number(directive) else {
            if padding.is_some() {
                return Err(unknown("a flag before a text directive"));
            }
            return self.write_text(out, directive);
        };
        // Writing to a String cannot fail.
        let _ = match padding.unwrap_or(fill) {
            '-' => write!(out, "{number}"),
            '_' => write!(out, "{number:width$}"),
            _ => write!(out, "{number:0width$}"),
        };
        Ok(())
    }

    /// The value, width and padding of a directive that writes a number.
    fn number(&self, directive: char) -> Option<(i64, usize, char)> {
        let hour_of_twelve = (self.hour + 11) % 12 + 1;
        let monday_based = (self.weekday + 6) % 7;
        Some(match directive {
            'd' => (self.day, 2, '0'),
            'e' => (self.day, 2, '_'),
            'm' => (self.month, 2, '0'),
            // glibc pads no year.
            'Y' => (self.year, 1, '0'),
            'y' => (self.year % 100, 2, '0'),
            'C' => (self.year / 100, 2, '0'),
            'H' => (self.hour, 2, '0'),
            'k' => (self.hour, 2, '_'),
            'I' => (hour_of_twelve, 2, '0'),
            'l' => (hour_of_twelve, 2, '_'),
            'M' => (self.minute, 2, '0'),
            'S' => (self.second, 2, '0'),
            'j' => (self.day_of_year, 3, '0'),
            'w' => (self.weekday, 1, '0'),
            'u' => (monday_based + 1, 1, '0'),
            'U' => ((self.day_of_year + 6 - self.weekday) / 7, 2, '0'),
            'W' => ((self.day_of_year + 6 - monday_based) / 7, 2, '0'),
            _ => return None,
        })
    }

    fn write_text(&self, out: &mut String, directive: char) -> Result<(), Error> {
        let Moment { year, month, day, hour, minute, second, .. } = self;
        let half = if self.hour < 12 { "AM" } else { "PM" };
        let weekday = name(&WEEKDAYS, self.weekday);
        let month_name = name(&MONTHS, self.month - 1);
        // Writing to a String cannot fail.
        let _ = match directive {
            'a' => write!(out, "{weekday:.3}"),
            'A' => write!(out, "{weekday}"),
            'b' | 'h' => write!(out, "{month_name:.3}"),
            'B' => write!(out, "{month_name}"),
            'p' => write!(out, "{half}"),
            'D' | 'x' => write!(out, "{month:02}/{day:02}/{:02}", year % 100),
            'F' => write!(out, "{year}-{month:02}-{day:02}"),
            'T' | 'X' => write!(out, "{hour:02}:{minute:02}:{second:02}"),
            'R' => write!(out, "{hour:02}:{minute:02}"),
            'r' => write!(out, "{:02}:{minute:02}:{second:02} {half}", (hour + 11) % 12 + 1),
            'c' => write!(out, "{weekday:.3} {month_name:.3} {day:2} {hour:02}:{minute:02}:{second:02} {year}"),
            'z' | 'Z' => Ok(()),
            'n' => writeln!(out),
            't' => write!(out, "\t"),
            '%' => write!(out, "%"),
            _ => return Err(unknown(directive.encode_utf8(&mut [0; 4]))),
        };
        Ok(())
    }
}

fn name(names: &[&'static str], index: i64) -> &'static str {
    usize::try_from(index).ok().and_then(|index| names.get(index)).copied().unwrap_or_default()
}

fn unknown(directive: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("strftime_now does not know the directive {directive:?}"))
}
