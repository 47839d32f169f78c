// The persistent thread team: runs a program of ops, each after all tasks of the one before.
#pragma once
#include "kernel.h"

struct Team;
Team* team_create(int threads, KernelTable kernels, void (*enter_thread)());
void team_destroy(Team* team);
void team_run(Team* team, const LlmcOp* ops, int num_ops, const Step& step);
int team_threads(const Team* team);
