// <limits.h> for NVRTC, which has no host library.
#pragma once
#include "../../c/limits.h"
