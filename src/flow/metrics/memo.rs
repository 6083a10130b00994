//! Names with labels, each formatted once in a VM and then only looked up.
//!
//! A request counts under up to five of them. Formatting one takes two allocations or more and copies some hundred bytes;
//! looking it up takes none.

use std::cell::RefCell;
use std::rc::Rc;

use hashbrown::HashMap;

/// The most models whose names are kept; those of others are formatted each time.
const MAX_MODELS: usize = 1_024;

thread_local! {
    static NAMES: RefCell<Names> = RefCell::new(Names::default());
}

/// A metric of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OfModel {
    /// Requests decided.
    Calls { reason_code: &'static str, hint_used: bool },
    /// The time that took.
    Latency,
    /// The time until the response's first byte.
    FirstByte { reason_code: &'static str },
    /// Tokens foretold to be cached.
    Predicted,
    /// Tokens that were.
    Cached,
    /// Responses compared.
    Compared { outcome: &'static str },
    /// Predictions that failed.
    Failures,
    /// Prompts counted otherwise by the engine.
    Mismatch,
}

#[derive(Default)]
struct Names {
    /// Few for each model: they are searched one by one.
    by_model: HashMap<String, Vec<(OfModel, Rc<str>)>>,
    /// By metric and value; the metric has one label.
    by_value: HashMap<(&'static str, &'static str), Rc<str>>,
}

/// The name of a metric of `model`, which is what `format` makes of it.
pub(super) fn of_model(model: &str, metric: OfModel, format: impl Fn() -> String) -> Rc<str> {
    with_names(|names| names.of_model(model, metric, &format)).unwrap_or_else(|| format().into())
}

/// The name of `metric` with its one label. Values are ours, so that there are few.
pub(super) fn labelled(metric: &'static str, label: &str, value: &'static str) -> Rc<str> {
    let format = || format!("{metric}.{label}.={value}.;").into();
    let known = with_names(|names| Rc::clone(names.by_value.entry((metric, value)).or_insert_with(format)));
    known.unwrap_or_else(format)
}

/// None where the names are in use, which no caller here can bring about.
fn with_names<T>(act: impl FnOnce(&mut Names) -> T) -> Option<T> {
    NAMES.with(|names| names.try_borrow_mut().ok().map(|mut names| act(&mut names)))
}

// === impl Names ===

impl Names {
    fn of_model(&mut self, model: &str, metric: OfModel, format: impl Fn() -> String) -> Rc<str> {
        if let Some(known) = self.by_model.get_mut(model) {
            if let Some((_, name)) = known.iter().find(|(other, _)| *other == metric) {
                return Rc::clone(name);
            }
            let name: Rc<str> = format().into();
            known.push((metric, Rc::clone(&name)));
            return name;
        }
        let name: Rc<str> = format().into();
        if self.by_model.len() < MAX_MODELS {
            self.by_model.insert(model.to_owned(), vec![(metric, Rc::clone(&name))]);
        }
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_formatted_once() {
        let calls = OfModel::Calls { reason_code: "NO_HINT", hint_used: false };
        let mut names = Names::default();
        let first = names.of_model("m", calls, || "calls of m".to_owned());
        let again = names.of_model("m", calls, || panic!("it is known"));
        assert!(Rc::ptr_eq(&first, &again));
        for (model, metric) in [
            ("n", calls),
            ("m", OfModel::Latency),
            ("m", OfModel::Calls { reason_code: "NO_HINT", hint_used: true }),
            ("m", OfModel::Calls { reason_code: "TIMEOUT", hint_used: false }),
        ] {
            assert_eq!(
                &*names.of_model(model, metric, || format!("{model} {metric:?}")),
                format!("{model} {metric:?}")
            );
        }
        let labelled_twice = [(); 2].map(|()| labelled("a_total", "detail", "cold"));
        assert!(Rc::ptr_eq(&labelled_twice[0], &labelled_twice[1]));
        assert_eq!(&*labelled_twice[0], "a_total.detail.=cold.;");
        assert_eq!(&*labelled("b_total", "detail", "cold"), "b_total.detail.=cold.;");
    }

    #[test]
    fn more_models_than_are_kept_have_names_all_the_same() {
        let mut names = Names::default();
        for number in 0..MAX_MODELS + 10 {
            let model = format!("m-{number}");
            assert_eq!(&*names.of_model(&model, OfModel::Latency, || model.clone()), model);
        }
        assert_eq!(names.by_model.len(), MAX_MODELS);
    }
}
