//! Whether a template takes a message's content as text or as a list of parts, as vLLM decides it.
//!
//! vLLM 0.33 (`vllm/renderers/hf.py`, `_detect_content_format`) looks at the syntax tree: a template gets parts (`openai`)
//! if it has a loop over the `content` of a message, that is of the variable of a loop over `messages` or over what is
//! assigned from it; or, in a macro, over a parameter to which such a content is passed; or, outside macros, over a variable
//! `content`. Otherwise it gets text (`string`). Filters, tests and slices around the first do not matter. Where the search
//! meets a target that is not a plain name it gives up, and the answer is text.

use minijinja::machinery::ast::{Call, CallArg, Expr, ForLoop, Macro, Stmt};

use super::source::ITERATED;
use super::tree::{Node, nodes};

/// The form in which a template is given the content of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentFormat {
    /// One text: vLLM's `string`.
    Text,
    /// A list of parts, `{"type": "text", "text": …}`: vLLM's `openai`.
    Parts,
}

/// A target that is not a plain name, where vLLM's search ends.
struct NotAName;

// === impl ContentFormat ===

impl ContentFormat {
    /// Detects the format from the parsed template.
    pub(super) fn of(root: &Stmt<'_>) -> ContentFormat {
        match loops_over_content(root) {
            Ok(true) => ContentFormat::Parts,
            Ok(false) | Err(NotAName) => ContentFormat::Text,
        }
    }
}

fn loops_over_content(root: &Stmt<'_>) -> Result<bool, NotAName> {
    let lists = names_of_messages(root)?;
    let mut messages = Vec::new();
    for each in loops(root) {
        if lists.iter().any(|list| is_access(&each.iter, list, None)) {
            messages.push(name_of(&each.target)?);
        }
    }
    let in_macros = loops_in_macros(root, &messages);
    for each in loops(root) {
        let over_content = messages.iter().any(|message| is_access(&each.iter, message, Some("content")));
        let in_macro = in_macros.iter().find(|(inside, _)| std::ptr::eq(*inside, each));
        let over_name = match (plain_subject(&each.iter), in_macro) {
            (Some(subject), Some((_, parameters))) => parameters.contains(&subject),
            (Some(subject), None) => subject == "content",
            (None, _) => false,
        };
        if over_content || over_name {
            return name_of(&each.target).map(|_| true);
        }
    }
    Ok(false)
}

/// The loops inside macros, each with the parameters of its macro to which the content of a message is passed.
fn loops_in_macros<'t, 'a>(root: &'t Stmt<'a>, messages: &[&str]) -> Vec<(&'t ForLoop<'a>, Vec<&'a str>)> {
    let mut inside = Vec::new();
    for node in nodes(root) {
        let Node::Statement(statement @ Stmt::Macro(declared)) = node else { continue };
        let parameters = content_parameters(root, declared, messages);
        inside.extend(loops(statement).map(|each| (each, parameters.clone())));
    }
    inside
}

fn content_parameters<'a>(root: &Stmt<'a>, declared: &Macro<'a>, messages: &[&str]) -> Vec<&'a str> {
    let is_content = |value: &Expr<'_>| messages.iter().any(|message| is_access(value, message, Some("content")));
    let names: Vec<&str> = declared.args.iter().filter_map(|parameter| name_of(parameter).ok()).collect();
    let mut found = Vec::new();
    for call in calls(root) {
        if !matches!(&call.expr, Expr::Var(called) if called.id == declared.name) {
            continue;
        }
        let mut place = 0;
        for argument in &call.args {
            match argument {
                CallArg::Pos(value) => {
                    found.extend(names.get(place).filter(|_| is_content(value)));
                    place = place.saturating_add(1);
                }
                CallArg::Kwarg(name, value) if is_content(value) => {
                    found.extend(names.iter().find(|known| *known == name));
                }
                _ => {}
            }
        }
    }
    found
}

/// `messages`, and every name that is assigned from one of these names.
fn names_of_messages<'a>(root: &Stmt<'a>) -> Result<Vec<&'a str>, NotAName> {
    let mut names = vec!["messages"];
    let mut looked_at = 0;
    while let Some(name) = names.get(looked_at).copied() {
        looked_at = looked_at.saturating_add(1);
        for node in nodes(root) {
            let Node::Statement(Stmt::Set(set)) = node else { continue };
            if is_access(&set.expr, name, None) {
                let assigned = name_of(&set.target)?;
                if !names.contains(&assigned) {
                    names.push(assigned);
                }
            }
        }
    }
    Ok(names)
}

fn loops<'t, 'a>(root: &'t Stmt<'a>) -> impl Iterator<Item = &'t ForLoop<'a>> {
    nodes(root).filter_map(|node| match node {
        Node::Statement(Stmt::ForLoop(each)) => Some(&**each),
        _ => None,
    })
}

fn calls<'t, 'a>(root: &'t Stmt<'a>) -> impl Iterator<Item = &'t Call<'a>> {
    nodes(root).filter_map(|node| match node {
        Node::Expression(Expr::Call(call)) => Some(&**call),
        _ => None,
    })
}

/// The name that a loop goes over, if there is nothing but a name, apart from the filter that every loop has.
fn plain_subject<'a>(subject: &Expr<'a>) -> Option<&'a str> {
    match subject {
        Expr::Filter(filter) if filter.name == ITERATED => name_of(filter.expr.as_ref()?).ok(),
        _ => None,
    }
}

fn name_of<'a>(target: &Expr<'a>) -> Result<&'a str, NotAName> {
    match target {
        Expr::Var(variable) => Ok(variable.id),
        _ => Err(NotAName),
    }
}

/// Whether an expression is the variable, or the attribute of it, perhaps filtered, tested or sliced.
fn is_access(mut expression: &Expr<'_>, variable: &str, attribute: Option<&str>) -> bool {
    loop {
        expression = match expression {
            Expr::Filter(filter) => match &filter.expr {
                Some(inner) => inner,
                None => return false,
            },
            Expr::Test(test) => &test.expr,
            Expr::Slice(slice) => &slice.expr,
            _ => break,
        };
    }
    let is_variable = |expression: &Expr<'_>| matches!(expression, Expr::Var(found) if found.id == variable);
    match (attribute, expression) {
        (None, expression) => is_variable(expression),
        (Some(name), Expr::GetAttr(access)) => access.name == name && is_variable(&access.expr),
        (Some(name), Expr::GetItem(access)) => {
            let named = matches!(&access.subscript_expr, Expr::Const(key) if key.value.as_str() == Some(name));
            named && is_variable(&access.expr)
        }
        _ => false,
    }
}
