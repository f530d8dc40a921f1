# Three questions to a release of pdips, in plain R: shares by group, means by group,
# and regressions on the synthetic sets. docs/r.md shows how; needs the package jsonlite,
# and arrow where the tables are Parquet files.
#
# Shares and means come from the noisy counts in margins.parquet (or .csv), whose noise
# privacy.json states. Columns that structural zeros tie together, and numbers without
# bins, are left to Python.

read_table <- function(folder, name) {
  path <- file.path(folder, paste0(name, ".parquet"))
  if (file.exists(path)) return(as.data.frame(arrow::read_parquet(path)))
  read.csv(file.path(folder, paste0(name, ".csv")), check.names = FALSE, na.strings = "")
}

read_release <- function(folder) {
  facts <- jsonlite::read_json(file.path(folder, "privacy.json"))
  rows <- read_table(folder, "margins")
  sets <- lapply(seq_len(facts$n_sets), function(k) read_table(folder, paste0("synthetic_", k)))
  if (length(facts$schema$total)) stop("public totals: ask in Python")
  list(facts = facts, noisy = split(rows$noisy, rows$margin), sets = sets)
}

# The names of a column's levels, or their numbers; missing values come last.
levels_of <- function(release, name) {
  column <- release$facts$schema$columns[[name]]
  if (is.null(column)) stop(name, " is no column of the release")
  lacks <- !is.null(column$missing) && !identical(column$missing, FALSE)
  if (!is.null(column$levels)) {
    levels <- unlist(column$levels)
    return(if (lacks) c(levels, NA) else levels)
  }
  if (isTRUE(column$integer) || identical(column$scale, "log") || lacks) stop(name, ": ask in Python")
  edges <- edges_of(column, name)
  (head(edges, -1) + tail(edges, -1)) / 2  # a bin counts by its middle
}

edges_of <- function(column, name) {
  edges <- unlist(column$bin_edges)
  if (!is.null(edges)) return(edges)
  if (is.null(column$bins)) stop(name, " has no bins")
  seq(column$lower, column$upper, length.out = column$bins + 1)
}

# Half the width of each bin, in which numbers may be anywhere; 0 of levels.
halves_of <- function(release, name) {
  column <- release$facts$schema$columns[[name]]
  if (!is.null(column$levels)) return(0 * seq_along(levels_of(release, name)))
  diff(edges_of(column, name)) / 2
}

# A table less its means along each axis: what it says beyond its margins.
centred <- function(table) {
  if (length(dim(table)) == 1) return(table - mean(table))
  for (axis in seq_along(dim(table))) {
    others <- setdiff(seq_along(dim(table)), axis)
    table <- sweep(table, others, apply(table, others, mean))
  }
  table
}

# What all margins say of a column, of a pair, or of the number of records: the average
# of their residuals by weights, and its variance (generalised least squares).
part_of <- function(release, columns) {
  effect <- 0; weights <- 0; squares <- 0
  for (k in seq_along(release$facts$margins)) {
    law <- release$facts$margins[[k]]
    names <- sapply(law$axes, function(axis) paste(unlist(axis$columns), collapse = ":"))
    sizes <- sapply(law$axes, function(axis) axis$size)
    odd <- sapply(law$axes, function(axis) length(c(axis$first, axis$lower, axis$groups, axis$codes)))
    if (law$law == "estimate" || any(unlist(odd) > 0) || !all(columns %in% names)) next
    if (law$differences && length(names) != length(columns)) next
    noisy <- release$noisy[[as.character(k - 1)]]
    shape <- if (length(sizes)) sizes - law$differences else 1
    if (length(noisy) != prod(shape)) next
    # the last axis runs fastest, and R's first
    table <- aperm(array(noisy, rev(shape)))
    if (law$differences) {
      for (axis in seq_along(shape)) {
        order <- c(axis, setdiff(seq_along(shape), axis))
        flat <- aperm(table, order)
        summed <- apply(rbind(0, matrix(flat, nrow = dim(flat)[1])), 2, cumsum)
        table <- aperm(array(summed, c(dim(flat)[1] + 1, dim(flat)[-1])), base::order(order))
      }
    }
    kept <- match(columns, names)
    n_summed <- prod(sizes[setdiff(seq_along(sizes), kept)])
    own <- if (length(kept)) centred(as.array(apply(table, kept, sum))) else sum(table)
    nominal <- if (law$law == "laplace") 2 * law$scale^2 else law$variance
    weight <- 1 / (nominal * n_summed)
    effect <- effect + weight * own
    weights <- weights + weight
    squares <- squares + weight * law$variance / nominal
  }
  if (weights == 0) stop("no margin holds ", paste(columns, collapse = " and "))
  list(effect = effect / weights, variance = squares / weights^2)
}

# Counts of one column or of all cells of two, the covariance of their noise, and of
# sampling on top; the last column's level runs fastest.
counts_of <- function(release, columns) {
  n <- nrow(release$sets[[1]])
  of_total <- 0
  if (release$facts$privacy$neighbours != "replace-one") {
    total <- part_of(release, character())
    n <- total$effect
    of_total <- total$variance
  }
  parts <- lapply(columns, function(name) part_of(release, name))
  sizes <- sapply(parts, function(part) length(part$effect))
  own <- lapply(sizes, function(size) diag(size) - 1 / size)
  shared <- lapply(sizes, function(size) matrix(1 / size^2, size, size))
  first <- as.vector(parts[[1]]$effect) + n / sizes[1]
  counts <- first
  noise <- parts[[1]]$variance * own[[1]] + of_total * shared[[1]]
  if (length(columns) == 2) {
    both <- part_of(release, columns)
    last <- as.vector(parts[[2]]$effect) + n / sizes[2]
    table <- outer(first / sizes[2], last / sizes[1], "+") + both$effect - n / prod(sizes)
    counts <- as.vector(t(table))
    noise <- both$variance * kronecker(own[[1]], own[[2]]) +
      parts[[1]]$variance * kronecker(own[[1]], shared[[2]]) +
      parts[[2]]$variance * kronecker(shared[[1]], own[[2]]) +
      of_total * kronecker(shared[[1]], shared[[2]])
  }
  n <- max(n, 1)
  p <- pmin(pmax(counts / n, 1 / n), 1)
  list(counts = counts, covariance = noise + n * (diag(p, length(p)) - outer(p, p)))
}

# The ratio of two sums of counts, with Fieller's interval of 95 %.
ratio <- function(found, above, below) {
  z <- qnorm(0.975)
  sums <- c(sum(above * found$counts), sum(below * found$counts))
  v <- rbind(above, below) %*% found$covariance %*% cbind(above, below)
  estimate <- sums[1] / sums[2]
  far <- (z / sums[2])^2
  part <- 1 - far * v[2, 2]
  spread <- v[1, 1] - 2 * estimate * v[1, 2] + estimate^2 * v[2, 2]
  inner <- max(spread - far * (v[1, 1] * v[2, 2] - v[1, 2]^2), 0)
  middle <- (estimate - far * v[1, 2]) / part
  half <- z / abs(sums[2]) * sqrt(inner) / part
  if (!is.finite(part) || part <= 0) return(c(estimate, -Inf, Inf))
  c(estimate, middle - half, middle + half)
}

# Half a width that allows for numbers anywhere in their bins: as two chances, or as
# both at their worst if that is less.
beside <- function(half, far) {
  min(sqrt(half^2 + (qnorm(0.975) * 2 * far / sqrt(8))^2), half + far)
}

by_group <- function(release, name, by, above, counted, halves = 0 * counted) {
  groups <- if (is.null(by)) "all" else levels_of(release, by)
  found <- counts_of(release, c(name, by))
  rows <- lapply(seq_along(groups), function(group) {
    held <- as.numeric(rep(seq_along(groups), length(above)) == group)
    weights <- function(own) rep(own, each = length(groups)) * held
    row <- ratio(found, weights(above), weights(counted))
    far <- abs(sum(weights(halves) * found$counts) / sum(weights(counted) * found$counts))
    c(row[1], row[1] - beside(row[1] - row[2], far), row[1] + beside(row[3] - row[1], far))
  })
  rows <- do.call(rbind, rows)
  data.frame(group = groups, estimate = rows[, 1], lower = rows[, 2], upper = rows[, 3])
}

# share(release, "voted", "yes", by = "sex")
share <- function(release, name, level, by = NULL) {
  levels <- levels_of(release, name)
  is_it <- as.numeric(!is.na(levels) & levels == level)
  found <- by_group(release, name, by, is_it, rep(1, length(levels)))
  transform(found, lower = pmax(lower, 0), upper = pmin(upper, 1))
}

# mean_of(release, "wage", by = "sex")
mean_of <- function(release, name, by = NULL) {
  values <- as.numeric(levels_of(release, name))
  known <- as.numeric(!is.na(values))
  by_group(release, name, by, ifelse(is.na(values), 0, values), known, halves_of(release, name))
}

# regression(release, voted == "yes" ~ sex): each set by itself, and combined by the rule
# "between" (docs/inference.md), which fits sets whose variance includes the noise
regression <- function(release, formula, fit = lm) {
  if (release$facts$offers$sets_share != "fresh noise") stop("another rule fits these sets: docs/inference.md")
  estimates <- as.matrix(sapply(release$sets, function(one) coef(fit(formula, data = one))))
  m <- ncol(estimates)
  centre <- rowMeans(estimates)
  reach <- qt(0.975, m - 1) * sqrt((1 + 1 / m) * apply(estimates, 1, var))
  data.frame(estimate = centre, lower = centre - reach, upper = centre + reach)
}
