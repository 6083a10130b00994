//! Whether a template takes a message's content as text or as a list of parts, as vLLM decides it.
//!
//! vLLM (`vllm/renderers/hf.py`, `_detect_content_format`, seen at e7ad92e5) looks at the syntax tree: if there is a loop
//! over the `content` of a message, that is of the variable of a loop over `messages` or over what is assigned from it,
//! the template gets parts (`openai`), otherwise text (`string`). Filters, tests and slices around the name do not
//! matter. Where its search meets a target that is not a plain name it gives up, and the answer is text.

use minijinja::machinery::ast::{Expr, Stmt};

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
    for (target, iterated) in loops(root) {
        if lists.iter().any(|list| is_access(iterated, list, None)) {
            messages.push(name_of(target)?);
        }
    }
    for (target, iterated) in loops(root) {
        if messages.iter().any(|message| is_access(iterated, message, Some("content"))) {
            return name_of(target).map(|_| true);
        }
    }
    Ok(false)
}

/// `messages`, and every name that is assigned from one of these names.
fn names_of_messages<'a>(root: &Stmt<'a>) -> Result<Vec<&'a str>, NotAName> {
    let mut names = vec!["messages"];
    let mut looked_at = 0;
    while let Some(name) = names.get(looked_at).copied() {
        looked_at += 1;
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

/// The targets and subjects of all loops.
fn loops<'t, 'a>(root: &'t Stmt<'a>) -> impl Iterator<Item = (&'t Expr<'a>, &'t Expr<'a>)> {
    nodes(root).filter_map(|node| match node {
        Node::Statement(Stmt::ForLoop(each)) => Some((&each.target, &each.iter)),
        _ => None,
    })
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
