//! Why a request went where it went: the contract's reason codes, and the detail behind them, which mostly is one behind
//! `NO_HINT` and `AFFINITY_HINT`.

/// The contract's `reason_code`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReasonCode {
    /// A replica holds a leading run of the prompt that clears both floors.
    PrefixMatch,
    /// No prefix matches; a replica that is warm for the tenant and the model may have something in common.
    TenantHot,
    /// Nothing better is known: the replica that requests with this prompt's hash always go to.
    AffinityHint,
    /// Nothing to say; [`Detail`] has the cause.
    NoHint,
    /// The tenant's policy requires a block chain, and the request has none.
    PolicyRequiresChain,
    /// The lookup took longer than the policy or the caller allows.
    Timeout,
    /// Nothing is known of the tenant.
    UnknownTenant,
    /// Nothing is known of the model for this tenant.
    UnknownModel,
    /// Nothing is known under the hash scheme for this tenant and model.
    UnknownHashScheme,
}

/// What stands behind a reason code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Detail {
    /// Nothing to add: the code says it all.
    None,
    /// The filter has no valid configuration.
    NotConfigured,
    /// The method is not POST.
    NotPost,
    /// The path is not one that carries prompts.
    OtherPath,
    /// A gRPC request.
    Grpc,
    /// A CONNECT request or a protocol upgrade.
    Upgrade,
    /// The client waits for `100 Continue` before it sends the body.
    ExpectContinue,
    /// The body is compressed.
    EncodedBody,
    /// The content type is not JSON.
    NotJson,
    /// The body is larger than `max_body_bytes`.
    BodyTooLarge,
    /// The body's length is not announced.
    UnknownLength,
    /// The body is empty.
    EmptyBody,
    /// The body is not well-formed JSON, or not an object.
    MalformedJson,
    /// A field that decides the route has a type that the API does not allow.
    WrongType,
    /// The proxy did not hand the headers or the body out.
    Unreadable,
    /// The request names no model.
    NoModel,
    /// The model is neither in the configuration nor an adapter of one that is.
    ModelNotConfigured,
    /// Several configured models have the adapter that is named in place of a model.
    AmbiguousAdapter,
    /// The request's tenant is not known.
    NoTenant,
    /// The request has no prompt.
    NoPrompt,
    /// The prompt is text, and there is no tokenizer for it.
    NoTokenizer,
    /// The prompt is a conversation, and there is no chat template for it.
    NoTemplate,
    /// The model's template or tokenizer refused the text.
    NotTokenized,
    /// More text than the contract allows.
    TooMuchText,
    /// Tokenizing the text takes more than one request may, or as many are being tokenized as may be.
    Budget,
    /// The explicit hashes or counts are malformed.
    MalformedChain,
    /// The policy switches chain matching off, and the request has nothing but a chain.
    ChainsDisabled,
    /// More tokens than the contract allows.
    TooManyTokens,
    /// The prompt is shorter than one block.
    ShortPrompt,
    /// The prompt is shorter than the policy's `minimumPrefixTokens`.
    BelowMinimumPrefix,
    /// The engine's key for this prompt depends on more than its tokens.
    UnsupportedKey,
    /// The index has never held anything.
    Cold,
    /// This VM has not caught up with the shared log yet.
    CatchingUp,
    /// The index has not been confirmed for longer than `stale_after_ms`.
    Stale,
    /// No replica holds the prompt's first block.
    Miss,
    /// Every run is shorter than the policy's `minimumMatchedTokens`.
    BelowMatchedTokens,
    /// The best score is below the policy's `routingFloorScore`.
    BelowRoutingFloor,
    /// The replicas that hold the prompt have no address.
    NoAddress,
    /// The request has several prompts, and the first one decided. Of a code that says it all otherwise.
    FirstOfSeveral,
}

// === impl ReasonCode ===

impl ReasonCode {
    /// Every code, in the order of the README's table.
    pub const ALL: [ReasonCode; 9] = [
        ReasonCode::PrefixMatch,
        ReasonCode::TenantHot,
        ReasonCode::AffinityHint,
        ReasonCode::NoHint,
        ReasonCode::PolicyRequiresChain,
        ReasonCode::Timeout,
        ReasonCode::UnknownTenant,
        ReasonCode::UnknownModel,
        ReasonCode::UnknownHashScheme,
    ];

    /// Whether it says that nothing is known under a key of the request's scope.
    pub fn is_unknown(self) -> bool {
        matches!(self, ReasonCode::UnknownTenant | ReasonCode::UnknownModel | ReasonCode::UnknownHashScheme)
    }

    /// The code as the contract spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            ReasonCode::PrefixMatch => "PREFIX_MATCH",
            ReasonCode::TenantHot => "TENANT_HOT",
            ReasonCode::AffinityHint => "AFFINITY_HINT",
            ReasonCode::NoHint => "NO_HINT",
            ReasonCode::PolicyRequiresChain => "POLICY_REQUIRES_CHAIN",
            ReasonCode::Timeout => "TIMEOUT",
            ReasonCode::UnknownTenant => "UNKNOWN_TENANT",
            ReasonCode::UnknownModel => "UNKNOWN_MODEL",
            ReasonCode::UnknownHashScheme => "UNKNOWN_HASH_SCHEME",
        }
    }
}

// === impl Detail ===

impl Detail {
    /// Every detail, in the order of the README's table.
    pub const ALL: [Detail; 39] = [
        Detail::None,
        Detail::NotConfigured,
        Detail::NotPost,
        Detail::OtherPath,
        Detail::Grpc,
        Detail::Upgrade,
        Detail::ExpectContinue,
        Detail::EncodedBody,
        Detail::NotJson,
        Detail::BodyTooLarge,
        Detail::UnknownLength,
        Detail::EmptyBody,
        Detail::MalformedJson,
        Detail::WrongType,
        Detail::Unreadable,
        Detail::NoModel,
        Detail::ModelNotConfigured,
        Detail::AmbiguousAdapter,
        Detail::NoTenant,
        Detail::NoPrompt,
        Detail::NoTokenizer,
        Detail::NoTemplate,
        Detail::NotTokenized,
        Detail::TooMuchText,
        Detail::Budget,
        Detail::MalformedChain,
        Detail::ChainsDisabled,
        Detail::TooManyTokens,
        Detail::ShortPrompt,
        Detail::BelowMinimumPrefix,
        Detail::UnsupportedKey,
        Detail::Cold,
        Detail::CatchingUp,
        Detail::Stale,
        Detail::Miss,
        Detail::BelowMatchedTokens,
        Detail::BelowRoutingFloor,
        Detail::NoAddress,
        Detail::FirstOfSeveral,
    ];

    /// The value of the `x-inferencecache-detail` header and of the metric label; empty for [`Detail::None`].
    pub fn as_str(self) -> &'static str {
        match self {
            Detail::None => "",
            Detail::NotConfigured => "not_configured",
            Detail::NotPost => "not_post",
            Detail::OtherPath => "other_path",
            Detail::Grpc => "grpc",
            Detail::Upgrade => "upgrade",
            Detail::ExpectContinue => "expect_continue",
            Detail::EncodedBody => "encoded_body",
            Detail::NotJson => "not_json",
            Detail::BodyTooLarge => "body_too_large",
            Detail::UnknownLength => "unknown_length",
            Detail::EmptyBody => "empty_body",
            Detail::MalformedJson => "malformed_json",
            Detail::WrongType => "wrong_type",
            Detail::Unreadable => "unreadable",
            Detail::NoModel => "no_model",
            Detail::ModelNotConfigured => "model_not_configured",
            Detail::AmbiguousAdapter => "ambiguous_adapter",
            Detail::NoTenant => "no_tenant",
            Detail::NoPrompt => "no_prompt",
            Detail::NoTokenizer => "no_tokenizer",
            Detail::NoTemplate => "no_template",
            Detail::NotTokenized => "not_tokenized",
            Detail::TooMuchText => "too_much_text",
            Detail::Budget => "budget",
            Detail::MalformedChain => "malformed_chain",
            Detail::ChainsDisabled => "chains_disabled",
            Detail::TooManyTokens => "too_many_tokens",
            Detail::ShortPrompt => "short_prompt",
            Detail::BelowMinimumPrefix => "below_minimum_prefix",
            Detail::UnsupportedKey => "unsupported_key",
            Detail::Cold => "cold",
            Detail::CatchingUp => "catching_up",
            Detail::Stale => "stale",
            Detail::Miss => "miss",
            Detail::BelowMatchedTokens => "below_matched_tokens",
            Detail::BelowRoutingFloor => "below_routing_floor",
            Detail::NoAddress => "no_address",
            Detail::FirstOfSeveral => "first_of_several",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_readme_explains_each_code_and_detail() {
        let readme = include_str!("../../README.md");
        let names = ReasonCode::ALL.iter().map(|code| code.as_str()).chain(Detail::ALL.iter().map(|it| it.as_str()));
        for name in names.filter(|name| !name.is_empty()) {
            assert!(readme.contains(&format!("`{name}`")), "{name}");
        }
    }
}
